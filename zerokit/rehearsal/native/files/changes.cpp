// The calls of the kernel that change files, carried out on what the script sees.

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>

#include "view.h"

namespace zerokit::files {

const Change changes[] = {
    {SYS_unlinkat, 0, 1, Use::kRemove},
    {SYS_mkdirat, 0, 1, Use::kCreate},
    {SYS_mknodat, 0, 1, Use::kCreate},
    {SYS_symlinkat, 1, 2, Use::kCreate},
    {SYS_linkat, 0, 1, Use::kLook},
    {SYS_renameat2, 0, 1, Use::kMove},
    {SYS_truncate, -1, 0, Use::kChange},
    {SYS_fchmodat, 0, 1, Use::kDescribe},
    {452 /* fchmodat2 */, 0, 1, Use::kDescribe, 3},
    {SYS_fchownat, 0, 1, Use::kDescribe, 4},
    {SYS_utimensat, 0, 1, Use::kDescribe, 3},
    {SYS_setxattr, -1, 0, Use::kDescribe},
    {SYS_removexattr, -1, 0, Use::kDescribe},
    {SYS_lsetxattr, -1, 0, Use::kDescribe, -2},
    {SYS_lremovexattr, -1, 0, Use::kDescribe, -2},
    {SYS_fchmod, 0, -1, Use::kDescribe},
    {SYS_fchown, 0, -1, Use::kDescribe},
    {SYS_fsetxattr, 0, -1, Use::kDescribe},
    {SYS_fremovexattr, 0, -1, Use::kDescribe},
#ifdef SYS_renameat
    {SYS_renameat, 0, 1, Use::kMove},
#endif
#ifdef SYS_unlink  // what newer processors do without
    {SYS_unlink, -1, 0, Use::kRemove},
    {SYS_rmdir, -1, 0, Use::kRemove},
    {SYS_mkdir, -1, 0, Use::kCreate},
    {SYS_mknod, -1, 0, Use::kCreate},
    {SYS_symlink, -1, 1, Use::kCreate},
    {SYS_link, -1, 0, Use::kLook},
    {SYS_rename, -1, 0, Use::kMove},
    {SYS_chmod, -1, 0, Use::kDescribe},
    {SYS_chown, -1, 0, Use::kDescribe},
    {SYS_lchown, -1, 0, Use::kDescribe, -2},
    {SYS_utime, -1, 0, Use::kDescribe},
    {SYS_utimes, -1, 0, Use::kDescribe},
    {SYS_futimesat, 0, 1, Use::kDescribe},
#endif
};
const int change_count = sizeof changes / sizeof changes[0];

namespace {
long fails(int error) {
  errno = error;
  return -1;
}

// Attributes of what is the disk's own are left alone, and the call is answered as if they had been set.
long described(const Change& change, const long* words, int folder, const char* path) {
  const bool follow = change.flags == -1 || (change.flags >= 0 && (words[change.flags] & AT_SYMLINK_NOFOLLOW) == 0);
  Place place;
  Path name;
  if (!find(folder, path, follow, place) || !name_of(place, Use::kLookAtLink, name)) return -1;
  if (place.mode == 0) return fails(ENOENT);
  const bool real = is_real(place.path.text, place.path.size);
  if (place.foreign || (place.below.size != 0 && !real)) return 0;
  if (real && !own_links(place.path, true)) return -1;
  long changed[6];
  memcpy(changed, words, sizeof changed);
  changed[change.path] = reinterpret_cast<long>(name.text);
  return enter(change.number, changed);
}

// The same through a descriptor, which may be one of a file that was only read.
long described_open(const Change& change, const long* words) {
  Path path;
  const bool own = !path_of(words[0], path) || path.text[0] != '/' || is_real(path.text, path.size) ||
                   strncmp(path.text, overlay(), strlen(overlay())) == 0 || is_of_the_kernel(path.text);
  return own ? enter(change.number, words) : 0;
}

long moved(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  Place old_place, new_place;
  Path old_name, new_name;
  if (!find(from_folder, from, false, old_place)) return -1;
  if (!find(to_folder, to, false, new_place)) return -1;
  if (old_place.mode == 0) return fails(ENOENT);
  const bool leaves =
      is_real(new_place.path.text, new_place.path.size) && !is_real(old_place.path.text, old_place.path.size);
  if (leaves && S_ISDIR(old_place.mode)) return fails(EXDEV);  // whoever moves files has to copy such folders himself
  const Use use = leaves && S_ISREG(old_place.mode) ? Use::kChange : Use::kMove;
  if (!name_of(old_place, use, old_name) || !name_of(new_place, Use::kEntry, new_name)) return -1;
  return kernel(SYS_renameat2, AT_FDCWD, old_name.text, AT_FDCWD, new_name.text, flags);
}

long linked(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  Place old_place, new_place;
  Path old_name, new_name;
  if (!find(from_folder, from, (flags & AT_SYMLINK_FOLLOW) != 0, old_place)) return -1;
  if (old_place.mode == 0) return fails(ENOENT);
  if (old_place.foreign) return fails(EACCES);
  if (!find(to_folder, to, false, new_place) || !name_of(new_place, Use::kCreate, new_name)) return -1;
  const bool disks_own =
      old_place.below.size != 0 && S_ISREG(old_place.mode) && !is_real(old_place.path.text, old_place.path.size);
  // A second name of the disk's own file would be a way to write into it.
  if (disks_own && !is_real(new_place.path.text, new_place.path.size)) return stand_for(old_place, new_name) ? 0 : -1;
  if (!name_of(old_place, disks_own ? Use::kChange : Use::kLookAtLink, old_name)) return -1;
  return kernel(SYS_linkat, AT_FDCWD, old_name.text, AT_FDCWD, new_name.text, flags);
}
}  // namespace

long changed_as(const Change& change, const long* words) {
  const int folder = change.folder < 0 ? AT_FDCWD : static_cast<int>(words[change.folder]);
  if (change.path < 0) return described_open(change, words);
  auto path_at = [&](int index) { return reinterpret_cast<const char*>(words[index]); };
  const char* path = path_at(change.path);
  const bool at = change.folder >= 0;  // then so has its second path
  const char* second = change.use == Use::kMove || change.use == Use::kLook ? path_at(at ? 3 : 1) : "-";
  const int flags_at = change.use == Use::kLook && at ? 4 : change.flags;
  long flags = flags_at > 0 ? words[flags_at] : 0;
  const bool is_open_file = path != nullptr && path[0] == 0 && (flags & AT_EMPTY_PATH) != 0;
  Path name_of_open;
  if (is_open_file && folder == AT_FDCWD) path = ".";
  if (is_open_file && folder != AT_FDCWD && change.use == Use::kLook) {
    name_of_open = link_of(folder);
    path = name_of_open.text;
    flags |= AT_SYMLINK_FOLLOW;
  }
  const bool without_path = path == nullptr && change.number == SYS_utimensat;
  if (without_path || (is_open_file && path[0] == 0)) return described_open(change, words);
  // A null pointer and no name: the kernel knows what to say.
  if (path == nullptr || path[0] == 0 || second == nullptr || second[0] == 0) return enter(change.number, words);
  const int second_folder = at ? static_cast<int>(words[2]) : AT_FDCWD;
  if (change.use == Use::kMove) {
    return moved(folder, path, second_folder, second, change.number == SYS_renameat2 ? words[4] : 0);
  }
  if (change.use == Use::kLook) return linked(folder, path, second_folder, second, flags);
  if (change.use == Use::kDescribe) return described(change, words, folder, path);
  Place place;
  Path name;
  const bool follow = change.use < Use::kCreate;
  const Use use = change.number == SYS_truncate && words[1] == 0 ? Use::kReplaceOld : change.use;
  if (!find(folder, path, follow, place) || !name_of(place, use, name)) return -1;
  long changed[6];
  memcpy(changed, words, sizeof changed);
  changed[change.path] = reinterpret_cast<long>(name.text);
  return enter(change.number, changed);
}

long opened(int folder, const char* path, int flags, mode_t mode) {
  const bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) != 0;
  if (!active() || path == nullptr || path[0] == 0 || (!changed() && !writes && (flags & O_CREAT) == 0)) {
    return kernel(SYS_openat, folder, path, flags, mode);
  }
  const int error = errno;
  const bool exclusive = (flags & O_CREAT) != 0 && (flags & O_EXCL) != 0;
  const bool follow = (flags & O_NOFOLLOW) == 0 && !exclusive;
  Place place;
  Path name;
  if (!find(folder, path, follow, place)) return -1;
  if ((flags & O_TMPFILE) == O_TMPFILE) {
    if (place.foreign) return fails(EACCES);
    const bool real = is_real(place.path.text, place.path.size);
    return kernel(SYS_openat, AT_FDCWD, real ? place.path.text : overlay(), flags, mode);
  }
  const bool creates = (flags & O_CREAT) != 0 && (writes || place.mode == 0);
  Use use = Use::kLook;
  if (exclusive) use = Use::kCreate;
  else if ((flags & O_PATH) != 0 || S_ISLNK(place.mode)) use = Use::kLookAtLink;
  else if ((flags & O_TRUNC) != 0) use = creates ? Use::kReplace : Use::kReplaceOld;
  else if (creates) use = Use::kWrite;
  else if (writes) use = Use::kChange;
  if (!name_of(place, use, name)) {
    // Many only read what they open for both: a database, a memory-mapped array.
    if (errno != EFBIG || (flags & O_ACCMODE) != O_RDWR) return -1;
    note("read only ", place.path.text);
    name = place.below;
    flags &= ~(O_ACCMODE | O_CREAT | O_APPEND);
  }
  errno = error;
  return kernel(SYS_openat, AT_FDCWD, name.text, flags, mode);
}

const char* looked_at(int folder, const char* path, bool follow, Path& on_disk) {
  if (!active() || !changed() || path == nullptr || path[0] == 0) return path;
  const int error = errno;
  Place place;
  if (!find(folder, path, follow, place)) return nullptr;
  if (!name_of(place, follow ? Use::kLook : Use::kLookAtLink, on_disk)) return nullptr;
  errno = error;
  return on_disk.text;
}

}  // namespace zerokit::files
