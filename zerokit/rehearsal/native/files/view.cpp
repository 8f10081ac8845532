#include "view.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace zerokit::files {

namespace {
constexpr char kOrigin[] = "/.zerokit-origin";
constexpr int kMostLinks = 40;
constexpr int kMostZones = 16;
constexpr off_t kShareOfTheRoom = 4;  // a file that takes more than this part of what is free is not copied

struct Zone {
  char path[PATH_MAX];
  size_t size;
  char kind;
};
char overlay_folder[PATH_MAX];
size_t overlay_size = 0;
Zone zones[kMostZones];
int zone_count = 0;
// Shared by all processes of a rehearsal.
struct Shared {
  std::atomic<int> changed;
  std::atomic<int> guarded;
  std::atomic<int> whole_root;
  alignas(8) int64_t began;  // in seconds since 1970 (file_overlay.py)
};
Shared* shared = nullptr;

// The kernel's own calls: those of the C library come back here.
int stat_of(const char* path, struct stat* found) {
  return kernel(SYS_newfstatat, AT_FDCWD, path, found, AT_SYMLINK_NOFOLLOW);
}
int open_file(const char* path, int flags, mode_t mode = 0) {
  return kernel(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, mode);
}
bool link_text(const char* path, Path& target) {
  const ssize_t size = kernel(SYS_readlinkat, AT_FDCWD, path, target.text, PATH_MAX - 1);
  if (size < 0) return false;
  target.cut(size);
  return true;
}

Path in_overlay(const char* path) {
  Path found(overlay_folder);
  found.add(path);
  return found;
}

bool fails(int error) {
  errno = error;
  return false;
}

// One process at a time changes what stands for the disk. The lock dies with its holder, and is let go of by name: a
// process that is forked meanwhile has the descriptor too.
class Lock {
 public:
  Lock() {
    Path file(overlay_folder);
    file.add(".lock");
    descriptor_ = open_file(file.text, O_RDWR | O_CREAT, 0600);
    while (flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~Lock() {
    const int error = errno;
    flock(descriptor_, LOCK_UN);
    kernel(SYS_close, descriptor_);
    errno = error;
  }

 private:
  int descriptor_;
};

// A name in the overlay's own folder, for what is put in its place once it is complete.
Path scratch() {
  static std::atomic<unsigned> count = 0;
  Path path(overlay_folder);
  path.add(".new-");
  path.add_number(kernel(SYS_gettid) * 65536UL + count++ % 65536);
  return path;
}

bool make_open_folder(const Path& where, const char* origin) {
  struct stat found;
  if (stat_of(origin, &found) != 0) return false;
  Path fresh = scratch();
  if (kernel(SYS_mkdirat, AT_FDCWD, fresh.text, (found.st_mode & 0777) | 0700) != 0) return false;
  const size_t size = fresh.size;
  fresh.add(kOrigin);
  const bool marked = kernel(SYS_symlinkat, origin, AT_FDCWD, fresh.text) == 0;
  fresh.cut(size);
  if (marked && kernel(SYS_renameat2, AT_FDCWD, fresh.text, AT_FDCWD, where.text, 0) == 0) return true;
  const int error = errno;
  fresh.add(kOrigin);
  kernel(SYS_unlinkat, AT_FDCWD, fresh.text, 0);
  fresh.cut(size);
  kernel(SYS_unlinkat, AT_FDCWD, fresh.text, AT_REMOVEDIR);
  return fails(error);
}

bool make_placeholder(const Path& where, const char* origin) {
  const int file = open_file(where.text, O_WRONLY | O_CREAT | O_EXCL, S_ISVTX | 0600);
  if (file < 0) return false;
  kernel(SYS_fchmod, file, S_ISVTX | 0600);
  const ssize_t size = strlen(origin);
  const bool written = write(file, origin, size) == size;
  kernel(SYS_close, file);
  return written;
}

struct Entry {  // of getdents64(2)
  uint64_t inode;
  int64_t offset;
  unsigned short size;
  unsigned char type;
  char name[];
};
constexpr unsigned char kFolder = 4, kLink = 10, kUnknown = 0;  // d_type

bool add_placeholder(Path& to, Path& from, const Entry& entry) {
  const size_t to_size = to.size, from_size = from.size;
  to.add("/");
  to.add(entry.name);
  if (from.size > 1) from.add("/");
  from.add(entry.name);
  struct stat found;
  unsigned char type = entry.type;
  bool added = true;
  if (to.too_long || from.too_long) {
    added = fails(ENAMETOOLONG);
  } else if (stat_of(to.text, &found) != 0) {
    if (type == kUnknown && stat_of(from.text, &found) == 0) {
      type = S_ISDIR(found.st_mode) ? kFolder : S_ISLNK(found.st_mode) ? kLink : 8;
    }
    Path target;
    if (type == kFolder) {
      added = make_open_folder(to, from.text);
    } else if (type == kLink) {
      added = link_text(from.text, target) && kernel(SYS_symlinkat, target.text, AT_FDCWD, to.text) == 0;
    } else {
      added = make_placeholder(to, from.text);
    }
    added = added || errno == ENOENT;  // it has gone meanwhile
  }
  to.cut(to_size);
  from.cut(from_size);
  return added;
}

// Make an open folder whole. It is open, and so complete, until the last moment.
bool fill(Path& folder) {
  Path origin;
  const size_t size = folder.size;
  folder.add(kOrigin);
  const bool is_open = link_text(folder.text, origin);
  folder.cut(size);
  if (!is_open) return true;
  const int listed = open_file(origin.text, O_RDONLY | O_DIRECTORY);
  if (listed < 0) return false;
  alignas(Entry) char entries[8192];
  bool complete = true;
  for (ssize_t read = 1; complete && read > 0;) {
    read = kernel(SYS_getdents64, listed, entries, sizeof entries);
    complete = read >= 0;
    for (ssize_t place = 0; complete && place < read;) {
      const auto& entry = *reinterpret_cast<Entry*>(entries + place);
      place += entry.size;
      if (strcmp(entry.name, ".") == 0 || strcmp(entry.name, "..") == 0) continue;
      complete = add_placeholder(folder, origin, entry);
    }
  }
  const int error = errno;
  kernel(SYS_close, listed);
  if (!complete) return fails(error);
  folder.add(kOrigin);
  kernel(SYS_unlinkat, AT_FDCWD, folder.text, 0);
  folder.cut(size);
  return true;
}

// Make the folder that the script calls `path` one of the overlay's own, and return its name there.
bool own_folder(const char* path, size_t size, bool to_write, Path& folder) {
  shared->changed = 1;
  folder = in_overlay("");
  Path origin;
  struct stat found;
  for (size_t start = 0; start < size;) {
    size_t end = start + 1;
    while (end < size && path[end] != '/') ++end;
    const size_t parent = folder.size;
    folder.add(kOrigin);
    const bool is_open = link_text(folder.text, origin);
    folder.cut(parent);
    folder.add(path + start, end - start);
    if (stat_of(folder.text, &found) != 0) {
      if (!is_open) return fails(ENOENT);
      if (origin.size == 1) origin.cut(0);
      origin.add(path + start, end - start);
      if (folder.too_long || origin.too_long) return fails(ENAMETOOLONG);
      if (!make_open_folder(folder, origin.text)) return false;
    }
    start = end;
  }
  const size_t own = folder.size;
  folder.add(kOrigin);
  const bool is_open = link_text(folder.text, origin);
  folder.cut(own);
  if (is_open && to_write && kernel(SYS_faccessat, AT_FDCWD, origin.text, W_OK) != 0) return false;
  if (!fill(folder)) return false;
  if (size == 0) shared->whole_root = 1;
  return true;
}

bool copy_into(int to, int from, off_t size) {
  if (ioctl(to, FICLONE, from) == 0) return true;
  struct statfs room;
  if (fstatfs(to, &room) == 0) {
    const off_t most = static_cast<off_t>(room.f_bavail) * room.f_bsize / kShareOfTheRoom;
    if (size > most) return fails(EFBIG);
  }
  while (size > 0) {
    const ssize_t copied = sendfile(to, from, nullptr, size);
    if (copied < 0) return false;
    if (copied == 0) break;
    size -= copied;
  }
  return true;
}

// Put a file of the script's own in the place of one of the disk.
bool own_file(const Place& place, bool with_content, const Path& name) {
  if (kernel(SYS_faccessat, AT_FDCWD, place.below.text, W_OK) != 0) return false;
  struct stat found;
  if (stat_of(place.below.text, &found) != 0) return false;
  const Path fresh = scratch();
  const int to = open_file(fresh.text, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (to < 0) return false;
  bool done = true;
  if (with_content) {
    const int from = open_file(place.below.text, O_RDONLY);
    done = from >= 0 && copy_into(to, from, found.st_size);
    const int error = errno;
    if (from >= 0) kernel(SYS_close, from);
    errno = error;
  }
  const int error = errno;
  kernel(SYS_fchmod, to, found.st_mode & 0777);
  kernel(SYS_close, to);
  if (done && kernel(SYS_renameat2, AT_FDCWD, fresh.text, AT_FDCWD, name.text, 0) == 0) return true;
  kernel(SYS_unlinkat, AT_FDCWD, fresh.text, 0);
  return fails(error);
}

// Go from a folder to its entry.
void step(Place& at, const char* name, size_t size) {
  struct stat found;
  const bool under_open = at.shadowed && at.open;
  if (at.below.size == 1) at.below.cut(0);
  at.path.add("/");
  at.path.add(name, size);
  if (at.shadowed) {
    Path own = in_overlay(at.path.text);
    if (stat_of(own.text, &found) == 0) {
      at.mode = found.st_mode;
      at.open = false;
      if (S_ISDIR(found.st_mode)) {
        own.add(kOrigin);
        at.open = link_text(own.text, at.below);
        if (!at.open) at.below.cut(0);
        return;
      }
      const bool placeholder = S_ISREG(found.st_mode) && (found.st_mode & S_ISVTX) != 0;
      if (!placeholder) return at.below.cut(0);
      Path origin;
      const int file = open_file(own.text, O_RDONLY);
      const ssize_t read = file < 0 ? -1 : ::read(file, origin.text, PATH_MAX - 1);
      if (file >= 0) kernel(SYS_close, file);
      if (read > 0) {
        origin.cut(read);
        at.below = origin;
      } else {  // it is just being made, in a folder that is still open
        at.below.add("/");
        at.below.add(name, size);
      }
      at.mode = stat_of(at.below.text, &found) == 0 ? found.st_mode : 0;
      return;
    }
    at.shadowed = false;
    if (!under_open) {
      at.mode = 0;
      at.open = false;
      return at.below.cut(0);
    }
  }
  at.below.add("/");
  at.below.add(name, size);
  at.mode = stat_of(at.below.text, &found) == 0 ? found.st_mode : 0;
  at.open = S_ISDIR(at.mode);
}

bool starts_with(const char* path, const char* folder, size_t size) {
  return strncmp(path, folder, size) == 0 && (path[size] == '/' || path[size] == 0);
}

// What the kernel answers for a folder whose entries are not the disk's is asked of the overlay's own.
bool look(Place& place, Path& on_disk) {
  if (S_ISDIR(place.mode)) {
    const char* path = place.path.size == 0 ? "/" : place.path.text;
    const bool elsewhere = !place.open || strcmp(place.below.text, path) != 0;
    if (!elsewhere) {
      on_disk = place.below;
      return true;
    }
    if (!place.open) {
      on_disk = in_overlay(place.path.text);
      return true;
    }
    const Lock lock;
    return own_folder(place.path.text, place.path.size, false, on_disk);
  }
  on_disk = place.below.size != 0 ? place.below : in_overlay(place.path.text);
  return true;
}

bool write_into(Place& place, Use use, Path& on_disk) {
  const bool there = place.mode != 0;
  if (!there && (use == Use::kChange || use == Use::kReplaceOld)) return fails(ENOENT);
  if (there && !S_ISREG(place.mode)) return look(place, on_disk);
  if (place.shadowed && place.below.size == 0) return look(place, on_disk);
  const Lock lock;
  if (!own_folder(place.path.text, place.path.folder(), !there, on_disk)) return false;
  on_disk.add(place.path.text + place.path.folder());
  struct stat now;
  const bool stands_for = stat_of(on_disk.text, &now) == 0 && S_ISREG(now.st_mode) && (now.st_mode & S_ISVTX) != 0;
  return !stands_for || own_file(place, use == Use::kChange || use == Use::kWrite, on_disk);
}

// Whether the text of a link of procfs is a path to what it leads to, as in /proc/self/cwd and /proc/self/fd/3 of a
// file. Of a pipe, say, it is `pipe:[7]`; of a file that has been removed, or of another mount namespace, a path to
// something else.
bool leads_by_name(const Path& text, const struct stat& found) {
  if (text.text[0] != '/') return strchr(text.text, ':') == nullptr;  // as /proc/self and /proc/mounts
  struct stat named;
  return stat_of(text.text, &named) == 0 && named.st_dev == found.st_dev && named.st_ino == found.st_ino;
}

}  // namespace

void Path::add(const char* more) { add(more, strlen(more)); }
void Path::add(const char* more, size_t count) {
  if (size + count >= PATH_MAX) {
    too_long = true;
    return;
  }
  memcpy(text + size, more, count);
  cut(size + count);
}
void Path::add_number(unsigned long number) {
  char digits[24];
  char* digit = digits + sizeof digits;
  do *--digit = static_cast<char>('0' + number % 10);
  while ((number /= 10) > 0);
  add(digit, digits + sizeof digits - digit);
}
size_t Path::folder() const {
  const void* slash = memrchr(text, '/', size);
  return slash == nullptr ? 0 : static_cast<const char*>(slash) - text;
}

bool set_up(const char* settings) {
  const char* end = strchrnul(settings, '\n');
  const size_t size = end - settings;
  if (size + 16 > PATH_MAX) return false;
  memcpy(overlay_folder, settings, size);
  while (*end != 0 && zone_count < kMostZones) {
    const char* start = end + 1;
    end = strchrnul(start, '\n');
    Zone& zone = zones[zone_count++];
    zone.kind = *start;
    zone.size = std::min<size_t>(end - start - 1, PATH_MAX - 1);
    memcpy(zone.path, start + 1, zone.size);
  }
  Path file(overlay_folder);
  file.add(".shared");
  const int state = open_file(file.text, O_RDWR);
  void* mapped = state < 0 ? MAP_FAILED : mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, state, 0);
  if (state >= 0) kernel(SYS_close, state);
  if (mapped == MAP_FAILED) return false;
  shared = static_cast<Shared*>(mapped);
  overlay_size = size;
  return true;
}

bool is_of_the_kernel(const char* path) { return starts_with(path, "/proc", 5) || starts_with(path, "/sys", 4); }

Path link_of(int descriptor) {
  Path name("/proc/self/fd/");
  name.add_number(descriptor);
  return name;
}

bool path_of(int descriptor, Path& path) {
  return descriptor < 0 ? fails(EBADF) : link_text(link_of(descriptor).text, path);
}

void say_guarded() { shared->guarded = 1; }

bool active() { return overlay_size != 0; }
bool changed() { return shared->changed != 0; }
const char* overlay() { return overlay_folder; }

void without_overlay(Path& path) {
  if (overlay_size == 0 || !starts_with(path.text, overlay_folder, overlay_size)) return;
  memmove(path.text, path.text + overlay_size, path.size - overlay_size + 1);
  path.size -= overlay_size;
  if (path.size == 0) path.add("/");
}

bool is_real(const char* path, size_t size) {
  const Zone* nearest = nullptr;
  for (int index = 0; index < zone_count; ++index) {
    const Zone& zone = zones[index];
    const bool inside = size >= zone.size && strncmp(path, zone.path, zone.size) == 0 &&
                        (size == zone.size || path[zone.size] == '/');
    const bool nearer = nearest == nullptr || zone.size > nearest->size;
    if (inside && (nearer || (zone.size == nearest->size && zone.kind == '+'))) nearest = &zone;
  }
  if (nearest == nullptr || nearest->kind == '-') return false;
  constexpr char compiled[] = "/__pycache__";
  return nearest->kind == '+' || memmem(path, size, compiled, sizeof compiled - 1) != nullptr;
}

bool own_links(const Path& path, bool with_content) {
  struct statx found;
  constexpr unsigned wanted = STATX_BASIC_STATS | STATX_BTIME;
  if (kernel(SYS_statx, AT_FDCWD, path.text, AT_SYMLINK_NOFOLLOW, wanted, &found) != 0) return true;
  const bool is_new = (found.stx_mask & STATX_BTIME) != 0 && found.stx_btime.tv_sec >= shared->began;
  if (!S_ISREG(found.stx_mode) || found.stx_nlink < 2 || is_new || starts_with(path.text, "/dev/shm", 8)) return true;
  const Lock lock;
  Path fresh;
  fresh.add(path.text, path.folder());
  fresh.add("/");
  fresh.add(scratch().text + overlay_size);
  if (fresh.too_long) return fails(ENAMETOOLONG);
  const int from = open_file(path.text, O_RDONLY);
  const int to = from < 0 ? -1 : open_file(fresh.text, O_WRONLY | O_CREAT | O_EXCL, 0600);
  bool done = to >= 0 && (!with_content || copy_into(to, from, found.stx_size));
  if (done) kernel(SYS_fchown, to, found.stx_uid, found.stx_gid);
  done = done && kernel(SYS_fchmod, to, found.stx_mode & 07777) == 0 &&
         kernel(SYS_renameat2, AT_FDCWD, fresh.text, AT_FDCWD, path.text, 0) == 0;
  const int error = errno;
  if (!done && to >= 0) kernel(SYS_unlinkat, AT_FDCWD, fresh.text, 0);
  if (to >= 0) kernel(SYS_close, to);
  if (from >= 0) kernel(SYS_close, from);
  return done || fails(error);
}

bool find(int folder, const char* path, bool follow, Place& place) {
  Path rest;
  if (path[0] != '/') {
    if (folder == AT_FDCWD) {
      if (kernel(SYS_getcwd, rest.text, PATH_MAX) < 0) return false;
      rest.cut(strlen(rest.text));
      if (rest.text[0] != '/') return fails(ENOENT);  // it has been removed, or lies in no folder of this process
    } else {
      if (!path_of(folder, rest)) return fails(EBADF);
      if (rest.text[0] != '/') return fails(ENOTDIR);
    }
    without_overlay(rest);
    rest.add("/");
  }
  rest.add(path);
  for (int links = 0; links <= kMostLinks; ++links) {
    place.path = Path();
    place.below = Path("/");
    place.mode = S_IFDIR;
    place.shadowed = true;
    place.open = shared->whole_root == 0;
    place.foreign = false;
    if (!place.open) place.below.cut(0);
    bool again = false;
    for (size_t start = 0; !again;) {
      while (rest.text[start] == '/') ++start;
      size_t end = start;
      while (rest.text[end] != 0 && rest.text[end] != '/') ++end;
      if (rest.too_long || place.path.too_long || place.below.too_long) return fails(ENAMETOOLONG);
      if (start == end) return true;
      const char* name = rest.text + start;
      const size_t size = end - start;
      if (!S_ISDIR(place.mode)) return fails(place.mode == 0 ? ENOENT : ENOTDIR);
      const bool last = rest.text[end] == 0;
      start = end;
      if (size == 1 && name[0] == '.') continue;
      Path target;
      const size_t folder_size = place.path.size;
      if (size == 2 && strncmp(name, "..", 2) == 0) {
        target.add(place.path.text, place.path.folder());
        --links;
      } else {
        step(place, name, size);
        if (!S_ISLNK(place.mode) || (last && !follow)) continue;
        const Path link = place.below.size != 0 ? place.below : in_overlay(place.path.text);
        Path text;
        if (!link_text(link.text, text)) return false;
        if (is_of_the_kernel(link.text)) {
          struct stat found;
          if (kernel(SYS_newfstatat, AT_FDCWD, link.text, &found, 0) != 0) return false;
          if (!leads_by_name(text, found)) {
            const bool is_file = S_ISREG(found.st_mode) || S_ISDIR(found.st_mode);
            place.foreign = is_file && found.st_nlink != 0;
            place.mode = found.st_mode;
            place.path.add(rest.text + end);
            place.below.cut(0);
            return true;
          }
          without_overlay(text);
        }
        if (text.text[0] != '/') {
          target.add(place.path.text, folder_size);
          target.add("/");
        }
        target.add(text.text);
      }
      target.add(rest.text + end);
      if (target.size == 0) target.add("/");
      rest = target;
      again = true;
    }
  }
  return fails(ELOOP);
}

bool name_of(Place& place, Use use, Path& on_disk) {
  const Path& path = place.path;
  const bool writes = use == Use::kChange || use == Use::kWrite || use == Use::kReplace || use == Use::kReplaceOld;
  const bool looks = use == Use::kLook || use == Use::kLookAtLink;
  if ((place.foreign && !looks) || (S_ISBLK(place.mode) && writes)) return fails(EACCES);
  if (is_of_the_kernel(path.text) || is_real(path.text, path.size)) {
    on_disk = path;
    return !writes || is_of_the_kernel(path.text) || own_links(path, use == Use::kChange || use == Use::kWrite);
  }
  switch (use) {
    case Use::kLook:
    case Use::kLookAtLink:
      return look(place, on_disk);
    case Use::kChange:
    case Use::kWrite:
    case Use::kReplace:
    case Use::kReplaceOld:
      return write_into(place, use, on_disk);
    default:
      break;
  }
  if (use == Use::kCreate && place.mode != 0) return fails(EEXIST);
  const bool takes_away = use == Use::kMove || use == Use::kRemove;
  if (takes_away && place.mode == 0 && !place.shadowed) return fails(ENOENT);
  // The folder that the script works in stays where it is, as what lies above it is written for real.
  if (path.size == 0 || is_real(path.text, path.folder())) return fails(EBUSY);
  const Lock lock;
  if (!own_folder(path.text, path.folder(), true, on_disk)) return false;
  on_disk.add(path.text + path.folder());
  if (on_disk.too_long) return fails(ENAMETOOLONG);
  const bool must_be_empty = S_ISDIR(place.mode) && place.open && (use == Use::kRemove || use == Use::kEntry);
  return !must_be_empty || fill(on_disk);
}

bool stand_for(const Place& place, const Path& new_name) { return make_placeholder(new_name, place.below.text); }

void note(const char* what, const char* path) {
  Path file(overlay_folder);
  file.add(".notes");
  const int notes = open_file(file.text, O_WRONLY | O_CREAT | O_APPEND, 0600);
  Path line(what);
  line.add(path);
  line.add("\n");
  if (notes < 0) return;
  if (write(notes, line.text, line.size) < 0) errno = 0;
  kernel(SYS_close, notes);
}

}  // namespace zerokit::files
