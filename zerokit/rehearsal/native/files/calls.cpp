// The C library's calls that look at files or start programs, in front of its own: a library that is preloaded
// (ld.so(8)) into a rehearsed script and all that it starts. What changes files is caught below them: kernel.cpp.
//
// Names such as `stat` are given as labels, since the headers declare them with other signatures here and there.

#include "calls.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "view.h"

namespace files = zerokit::files;
using files::kernel;
using files::looked_at;
using files::Path;
using files::Place;

#define CALL(result, name, ...)                        \
  extern "C" result zk_##name(__VA_ARGS__) asm(#name); \
  extern "C" [[gnu::visibility("default")]] result zk_##name(__VA_ARGS__)
#define SAME(other, name) \
  extern "C" [[gnu::visibility("default"), gnu::alias(#name)]] decltype(zk_##name) zk_##other asm(#other)
#define NEXT(name) reinterpret_cast<decltype(&zk_##name)>(dlsym(RTLD_NEXT, #name))

namespace {
const char* inherited_settings = "";
const char* inherited_library = "";

int stat_at(int folder, const char* path, struct stat* found, int flags) {
  Path name;
  path = looked_at(folder, path, (flags & AT_SYMLINK_NOFOLLOW) == 0, name);
  return path == nullptr ? -1 : kernel(SYS_newfstatat, folder, path, found, flags);
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, int) : 0;
}

// The environment of a program that is started, with what has it come here too.
class Environment {
 public:
  explicit Environment(char* const* given) : given_(given) {
    using files::kPreload, files::kSettings;
    if (!files::active() || given == nullptr) return;
    size_t count = 0;
    const char* preloaded = "";
    bool whole = false;
    for (; given[count] != nullptr; ++count) {
      whole = whole || strncmp(given[count], kSettings, strlen(kSettings)) == 0;
      if (strncmp(given[count], kPreload, strlen(kPreload)) == 0) preloaded = given[count] + strlen(kPreload);
    }
    if (whole && strstr(preloaded, inherited_library) != nullptr) return;
    made_ = static_cast<char**>(calloc(count + 3, sizeof(char*)));
    if (made_ == nullptr || asprintf(&made_[0], "%s%s", kSettings, inherited_settings) < 0 ||
        asprintf(&made_[1], "%s%s:%s", kPreload, inherited_library, preloaded) < 0) {
      return;
    }
    size_t kept = 2;
    for (size_t index = 0; index < count; ++index) {
      const bool ours = strncmp(given[index], kSettings, strlen(kSettings)) == 0;
      if (!ours && strncmp(given[index], kPreload, strlen(kPreload)) != 0) made_[kept++] = given[index];
    }
  }
  ~Environment() {
    if (made_ == nullptr) return;
    free(made_[0]);
    free(made_[1]);
    free(made_);
  }
  char* const* get() const { return made_ != nullptr ? made_ : given_; }

 private:
  char* const* given_;
  char** made_ = nullptr;
};

// The answer outlives the call, so that dlopen can hand on and leave no frame: it looks at who has called it.
[[gnu::noinline]] const char* library_at(const char* path) {
  static thread_local Path name;
  if (path == nullptr || strchr(path, '/') == nullptr) return path;
  const char* known = looked_at(AT_FDCWD, path, true, name);
  return known == nullptr ? path : known;
}
}  // namespace

void zerokit::files::inherit(const char* settings, const char* library) {
  inherited_settings = strdup(settings);
  inherited_library = strdup(library);
}

CALL(int, open, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return files::opened(AT_FDCWD, path, flags, mode);
}
SAME(open64, open);
CALL(int, openat, int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return files::opened(folder, path, flags, mode);
}
SAME(openat64, openat);
CALL(int, __open_2, const char* path, int flags) { return files::opened(AT_FDCWD, path, flags, 0); }
SAME(__open64_2, __open_2);
CALL(int, __openat_2, int folder, const char* path, int flags) { return files::opened(folder, path, flags, 0); }
SAME(__openat64_2, __openat_2);
#define STREAM(name)                                                                        \
  CALL(FILE*, name, const char* path, const char* mode) {                                   \
    Path known;                                                                             \
    if (mode[0] == 'r' && strchr(mode, '+') == nullptr) path = looked_at(AT_FDCWD, path, true, known); \
    return path == nullptr ? nullptr : NEXT(name)(path, mode);                              \
  }
STREAM(fopen)
STREAM(fopen64)
CALL(DIR*, opendir, const char* path) {
  const int folder = files::opened(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK, 0);
  return folder < 0 ? nullptr : fdopendir(folder);
}

CALL(int, fstatat, int folder, const char* path, struct stat* found, int flags) {
  return stat_at(folder, path, found, flags);
}
SAME(fstatat64, fstatat);
CALL(int, stat, const char* path, struct stat* found) { return stat_at(AT_FDCWD, path, found, 0); }
SAME(stat64, stat);
CALL(int, lstat, const char* path, struct stat* found) { return stat_at(AT_FDCWD, path, found, AT_SYMLINK_NOFOLLOW); }
SAME(lstat64, lstat);
// As programs ask that were built with a C library older than 2.33.
CALL(int, __xstat, int, const char* path, struct stat* found) { return stat_at(AT_FDCWD, path, found, 0); }
SAME(__xstat64, __xstat);
CALL(int, __lxstat, int, const char* path, struct stat* found) {
  return stat_at(AT_FDCWD, path, found, AT_SYMLINK_NOFOLLOW);
}
SAME(__lxstat64, __lxstat);
CALL(int, __fxstatat, int, int folder, const char* path, struct stat* found, int flags) {
  return stat_at(folder, path, found, flags);
}
SAME(__fxstatat64, __fxstatat);
CALL(int, statx, int folder, const char* path, int flags, unsigned mask, void* found) {
  Path name;
  const char* known = looked_at(folder, path, (flags & AT_SYMLINK_NOFOLLOW) == 0, name);
  return known == nullptr && path != nullptr ? -1 : kernel(SYS_statx, folder, known, flags, mask, found);
}
CALL(int, faccessat, int folder, const char* path, int mode, int flags) {
  Path name;
  path = looked_at(folder, path, (flags & AT_SYMLINK_NOFOLLOW) == 0, name);
  return path == nullptr ? -1 : NEXT(faccessat)(folder, path, mode, flags);
}
CALL(ssize_t, readlinkat, int folder, const char* path, char* target, size_t size) {
  Path name;
  path = looked_at(folder, path, false, name);
  return path == nullptr ? -1 : kernel(SYS_readlinkat, folder, path, target, size);
}
CALL(ssize_t, readlink, const char* path, char* target, size_t size) {
  return zk_readlinkat(AT_FDCWD, path, target, size);
}
// Calls whose first argument is a path, and that only look.
#define LOOKS(result, name, follow, parameters, ...)                    \
  CALL(result, name, const char* path, parameters) {                    \
    Path known;                                                         \
    path = looked_at(AT_FDCWD, path, follow, known);                    \
    return path == nullptr ? (result)(-1) : NEXT(name)(path, __VA_ARGS__); \
  }
#define AND ,
LOOKS(int, access, true, int mode, mode)
LOOKS(int, eaccess, true, int mode, mode)
LOOKS(int, euidaccess, true, int mode, mode)
LOOKS(int, statvfs, true, void* found, found)
LOOKS(int, statvfs64, true, void* found, found)
LOOKS(int, statfs, true, void* found, found)
LOOKS(int, statfs64, true, void* found, found)
LOOKS(ssize_t, getxattr, true, const char* key AND void* value AND size_t size, key, value, size)
LOOKS(ssize_t, lgetxattr, false, const char* key AND void* value AND size_t size, key, value, size)
LOOKS(ssize_t, listxattr, true, char* list AND size_t size, list, size)
LOOKS(ssize_t, llistxattr, false, char* list AND size_t size, list, size)

CALL(char*, realpath, const char* path, char* found) {
  Place place;
  if (!files::active() || path == nullptr || path[0] == 0 || files::is_of_the_kernel(path)) {
    return NEXT(realpath)(path, found);
  }
  if (!files::find(AT_FDCWD, path, true, place)) return nullptr;
  if (place.mode == 0) {
    errno = ENOENT;
    return nullptr;
  }
  const char* answer = place.path.size == 0 ? "/" : place.path.text;
  return found == nullptr ? strdup(answer) : strcpy(found, answer);
}
CALL(char*, __realpath_chk, const char* path, char* found, size_t) { return zk_realpath(path, found); }
CALL(char*, canonicalize_file_name, const char* path) { return zk_realpath(path, nullptr); }
CALL(char*, getcwd, char* found, size_t size) {
  Path folder;
  if (!files::active()) return NEXT(getcwd)(found, size);
  if (kernel(SYS_getcwd, folder.text, PATH_MAX) < 0) return nullptr;
  folder.cut(strlen(folder.text));
  files::without_overlay(folder);
  if (found != nullptr && folder.size >= size) {
    errno = size == 0 ? EINVAL : ERANGE;
    return nullptr;
  }
  return found == nullptr ? strdup(folder.text) : strcpy(found, folder.text);
}
CALL(char*, __getcwd_chk, char* found, size_t size, size_t) { return zk_getcwd(found, size); }
CALL(char*, get_current_dir_name) { return zk_getcwd(nullptr, 0); }
CALL(int, chdir, const char* path) {
  Path name;
  path = looked_at(AT_FDCWD, path, true, name);
  return path == nullptr ? -1 : kernel(SYS_chdir, path);
}

CALL(void*, dlopen, const char* path, int flags) {
  static const auto next_dlopen = NEXT(dlopen);
  return next_dlopen(library_at(path), flags);
}
CALL(int, execve, const char* path, char* const* words, char* const* environment) {
  Path name;
  path = looked_at(AT_FDCWD, path, true, name);
  if (path == nullptr) return -1;
  const Environment whole(environment);
  return kernel(SYS_execve, path, words, whole.get());
}
CALL(int, execv, const char* path, char* const* words) { return zk_execve(path, words, environ); }
CALL(int, execvpe, const char* file, char* const* words, char* const* environment) {
  const Environment whole(environment);
  return NEXT(execvpe)(file, words, whole.get());
}
#define SPAWN(name)                                                                                       \
  CALL(int, name, pid_t* process, const char* path, const posix_spawn_file_actions_t* actions,            \
       const posix_spawnattr_t* how, char* const* words, char* const* environment) {                      \
    Path known;                                                                                           \
    path = strchr(path, '/') == nullptr ? path : looked_at(AT_FDCWD, path, true, known);                  \
    if (path == nullptr) return errno;                                                                    \
    const Environment whole(environment);                                                                 \
    return NEXT(name)(process, path, actions, how, words, whole.get());                                   \
  }
SPAWN(posix_spawn)
SPAWN(posix_spawnp)

// A thread that holds SIGSYS back would be ended by the first file that it changes.
#define MASK(name)                                                       \
  CALL(int, name, int how, const sigset_t* set, sigset_t* before) {      \
    sigset_t without;                                                    \
    if (set != nullptr && how != SIG_UNBLOCK && files::active()) {       \
      without = *set;                                                    \
      sigdelset(&without, SIGSYS);                                       \
      set = &without;                                                    \
    }                                                                    \
    return NEXT(name)(how, set, before);                                 \
  }
MASK(pthread_sigmask)
MASK(sigprocmask)
