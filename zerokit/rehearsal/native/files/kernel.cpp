// The way into the kernel, and the guard at it. A filter (seccomp(2)) has the kernel hand every call that changes files
// back to the program, by the signal SIGSYS: so no library can go around the overlay, in whatever way it calls. The
// filter is inherited by all that a script starts; only calls from the page at kGate pass.

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "calls.h"
#include "view.h"

namespace zerokit::files {

namespace {
constexpr unsigned long kGate = 0x6b0000000;  // the same in all processes, where nothing else is put
constexpr unsigned long kPage = 4096;
constexpr int kWrites = O_ACCMODE | O_CREAT | O_TRUNC;
constexpr long kUnknown[] = {
    437, 425,       // openat2 and io_uring_setup: they say what they do where no filter looks
    463, 466, 469,  // setxattrat, removexattrat and file_setattr: newer than what they replace, which is caught
};
// What makes a path lead to another file than the overlay takes it for, or needs no path.
constexpr long kRefused[] = {SYS_mount,  SYS_umount2, SYS_pivot_root,        SYS_chroot, 428 /* open_tree */,
                             429 /* move_mount */,    SYS_open_by_handle_at};
constexpr unsigned kX32 = 0x40000000;  // __X32_SYSCALL_BIT: the same calls by other numbers

using Gate = long (*)(long, long, long, long, long, long, long);
Gate gate = nullptr;
bool came_back = false;

#if defined(__x86_64__)
constexpr unsigned kProcessor = AUDIT_ARCH_X86_64;
// mov %rdi,%rax; ... ; syscall; ret
constexpr unsigned char kCode[] = {0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89, 0xca, 0x4d,
                                   0x89, 0xc2, 0x4d, 0x89, 0xc8, 0x4c, 0x8b, 0x4c, 0x24, 0x08, 0x0f, 0x05, 0xc3};
long* result_of(ucontext_t* at) { return reinterpret_cast<long*>(&at->uc_mcontext.gregs[REG_RAX]); }
void words_of(const ucontext_t* at, long* words) {
  const int registers[] = {REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9};
  for (int index = 0; index < 6; ++index) words[index] = at->uc_mcontext.gregs[registers[index]];
}
#elif defined(__aarch64__)
constexpr unsigned kProcessor = AUDIT_ARCH_AARCH64;
// mov x8,x0; ... ; svc #0; ret
constexpr unsigned kCode[] = {0xaa0003e8, 0xaa0103e0, 0xaa0203e1, 0xaa0303e2, 0xaa0403e3,
                              0xaa0503e4, 0xaa0603e5, 0xd4000001, 0xd65f03c0};
long* result_of(ucontext_t* at) { return reinterpret_cast<long*>(&at->uc_mcontext.regs[0]); }
void words_of(const ucontext_t* at, long* words) {
  for (int index = 0; index < 6; ++index) words[index] = at->uc_mcontext.regs[index];
}
#else
#error "a rehearsal guards files on x86-64 and aarch64"
#endif

bool make_gate() {
  void* place = reinterpret_cast<void*>(kGate);
  void* page = mmap(place, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (page != place) return false;
  memcpy(page, kCode, sizeof kCode);
  __builtin___clear_cache(static_cast<char*>(page), static_cast<char*>(page) + sizeof kCode);
  if (mprotect(page, kPage, PROT_READ | PROT_EXEC) != 0) return false;
  gate = reinterpret_cast<Gate>(kGate);
  return true;
}

void handed_back(int, siginfo_t* call, void* context) {
  const int error = errno;
  came_back = true;
  auto* at = static_cast<ucontext_t*>(context);
  long words[6];
  words_of(at, words);
  long result = -1;
  errno = ENOSYS;
  const long number = call->si_syscall;
#ifdef SYS_open
  if (number == SYS_open) result = opened(AT_FDCWD, (const char*)words[0], words[1], words[2]);
  if (number == SYS_creat) result = opened(AT_FDCWD, (const char*)words[0], O_WRONLY | O_CREAT | O_TRUNC, words[1]);
#endif
  if (number == SYS_openat) result = opened(words[0], (const char*)words[1], words[2], words[3]);
  for (int index = 0; index < change_count; ++index) {
    if (changes[index].number == number) result = changed_as(changes[index], words);
  }
  *result_of(at) = result == -1 ? -errno : result;
  errno = error;
}

bool install_filter() {
  sock_filter filter[256];
  unsigned size = 0;
  auto add = [&](unsigned short code, unsigned value, unsigned char yes = 0, unsigned char no = 0) {
    filter[size++] = {code, yes, no, value};
  };
  auto load = [&](unsigned offset) { add(BPF_LD | BPF_W | BPF_ABS, offset); };
  auto answer = [&](unsigned what) { add(BPF_RET | BPF_K, what); };
  constexpr unsigned short equal = BPF_JMP | BPF_JEQ | BPF_K, mask = BPF_ALU | BPF_AND | BPF_K;
  load(offsetof(seccomp_data, arch));
  add(equal, kProcessor, 1, 0);
  answer(SECCOMP_RET_ERRNO | ENOSYS);
  load(offsetof(seccomp_data, instruction_pointer) + 4);
  add(equal, kGate >> 32, 0, 4);
  load(offsetof(seccomp_data, instruction_pointer));
  add(mask, ~static_cast<unsigned>(kPage - 1));
  add(equal, static_cast<unsigned>(kGate), 0, 1);
  answer(SECCOMP_RET_ALLOW);
  load(offsetof(seccomp_data, nr));
  add(BPF_JMP | BPF_JGE | BPF_K, kX32, 0, 1);
  answer(SECCOMP_RET_ERRNO | ENOSYS);
  auto opens = [&](unsigned number, int flags) {
    add(equal, number, 0, 5);
    load(offsetof(seccomp_data, args) + flags * sizeof(uint64_t));
    add(mask, kWrites);
    add(equal, 0, 0, 1);
    answer(SECCOMP_RET_ALLOW);
    answer(SECCOMP_RET_TRAP);
  };
  opens(SYS_openat, 2);
#ifdef SYS_open
  opens(SYS_open, 1);
  add(equal, SYS_creat, 0, 1);
  answer(SECCOMP_RET_TRAP);
#endif
  add(equal, SYS_ioctl, 0, 5);  // what sets attributes of a file that is open for reading
  load(offsetof(seccomp_data, args) + sizeof(uint64_t));
  add(equal, static_cast<unsigned>(FS_IOC_SETFLAGS), 1, 0);
  add(equal, static_cast<unsigned>(FS_IOC_FSSETXATTR), 0, 1);
  answer(SECCOMP_RET_ERRNO | EOPNOTSUPP);
  answer(SECCOMP_RET_ALLOW);
  for (long number : kUnknown) {
    add(equal, number, 0, 1);
    answer(SECCOMP_RET_ERRNO | ENOSYS);
  }
  for (long number : kRefused) {
    add(equal, number, 0, 1);
    answer(SECCOMP_RET_ERRNO | EPERM);
  }
  for (int index = 0; index < change_count; ++index) {
    add(equal, changes[index].number, 0, 1);
    answer(SECCOMP_RET_TRAP);
  }
  answer(SECCOMP_RET_ALLOW);
  const sock_fprog program = {static_cast<unsigned short>(size), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

bool is_guarded() {
  came_back = false;
  syscall(SYS_openat, -1, nullptr, O_WRONLY);
  return came_back;
}

// The linker is told to run this before what other libraries do when they are loaded (build.py).
[[gnu::constructor]] void begin(int, char**, char** environment) {
  const char* settings = nullptr;
  for (; *environment != nullptr; ++environment) {
    if (strncmp(*environment, kSettings, sizeof kSettings - 1) == 0) settings = *environment + sizeof kSettings - 1;
  }
  if (settings == nullptr || !make_gate()) return;
  struct sigaction action = {};
  action.sa_sigaction = handed_back;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  if (sigaction(SIGSYS, &action, nullptr) != 0 || !set_up(settings)) return;
  Dl_info self;
  inherit(settings, dladdr(reinterpret_cast<void*>(&make_gate), &self) != 0 ? self.dli_fname : "");
  if (is_guarded() || (install_filter() && is_guarded())) say_guarded();
}
}  // namespace

long enter(long number, const long* words) {
  if (gate == nullptr) return syscall(number, words[0], words[1], words[2], words[3], words[4], words[5]);
  const long result = gate(number, words[0], words[1], words[2], words[3], words[4], words[5]);
  if (result >= 0 || result < -4095) return result;
  errno = -result;
  return -1;
}

}  // namespace zerokit::files
