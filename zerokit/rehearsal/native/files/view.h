// What a rehearsed script sees of the file system: the files as they are, with what it has changed laid over them.
//
// The overlay is a folder U in which U/home/me/run stands for /home/me/run. A folder in it is open or whole. An open
// one has a link to the folder it stands for, which shows through wherever it has no entry of its own. A whole one
// holds every entry: before the first entry of a folder is made, renamed or removed, each of the others gets a
// placeholder (an open folder, a copy of a link, or a file that holds the path of what it stands for). So the kernel
// lists, removes and renames in U.
#pragma once

#include <limits.h>
#include <sys/stat.h>

#include <cstddef>

namespace zerokit::files {

// A path of bounded length, so that nothing here allocates: malloc itself may be what opens a file.
struct Path {
  char text[PATH_MAX];
  size_t size = 0;
  Path() { text[0] = 0; }
  explicit Path(const char* from) : Path() { add(from); }
  void add(const char* more);
  void add(const char* more, size_t count);
  void add_number(unsigned long number);
  void cut(size_t to) { text[size = to] = 0; }
  size_t folder() const;  // length of the path of the folder it is in
  bool too_long = false;
};

// Where a path of the script's leads.
struct Place {
  Path path;      // without links
  Path below;     // the file or folder on disk that shows there; empty if it is the overlay's own
  mode_t mode;    // its type; 0 if there is nothing
  bool shadowed;  // the overlay has an entry for it
  bool open;      // a folder, and `below` shows through
  bool foreign;   // a link of procfs leads to it, and no path: it may be a file of anybody's
};

enum class Use {
  kLook,        // at what is there
  kLookAtLink,  // the same, and the last link is not followed
  kChange,      // write into a file that is there
  kWrite,       // write into a file, which may be new
  kReplace,     // write a file anew
  kReplaceOld,  // the same, if it is there
  kCreate,      // make a name that must be new; links are not followed, here and below
  kEntry,       // make a name, or put another thing in its place
  kMove,        // take a name away
  kRemove,      // the same, of a file or an empty folder
  kDescribe,    // set attributes
};

// By the environment variable ZEROKIT_FILES: a line for the overlay's folder, and one for each folder that is written
// for real (+), is not (-), or is as far as Python keeps compiled modules there (*). The longest decides.
bool set_up(const char* settings);
void say_guarded();
bool active();
bool changed();  // whether the overlay differs from the disk
bool is_real(const char* path, size_t size);  // is in a temporary folder, and so written for real
// See that what is written into a file of a temporary folder has no name elsewhere, by a copy of it there: it may have
// been a person's file before the rehearsal began. In shared memory no file of the disk has a name.
bool own_links(const Path& path, bool with_content);
bool find(int folder, const char* path, bool follow, Place& place);
bool name_of(Place& place, Use use, Path& on_disk);
bool stand_for(const Place& place, const Path& new_name);  // a file in U that stands for one on disk
void note(const char* what, const char* path);
void without_overlay(Path& path);
Path link_of(int descriptor);  // in procfs
bool path_of(int descriptor, Path& path);
bool is_of_the_kernel(const char* path);  // in /proc or /sys, which are never anything else
const char* overlay();

// A call as a script makes it, carried out on what it sees (changes.cpp). -1 with errno if it fails.
long opened(int folder, const char* path, int flags, mode_t mode);
const char* looked_at(int folder, const char* path, bool follow, Path& on_disk);
struct Change {
  long number;    // of the kernel's call, which
  int folder;     // has the open folder that its path starts from as this argument (-1: the current one),
  int path;       // this one as the path (-1: a descriptor comes first),
  Use use;        // does this there,
  int flags = -1; // and has AT_SYMLINK_NOFOLLOW in this one
};
extern const Change changes[];
extern const int change_count;
long changed_as(const Change& change, const long* words);

// A call that the kernel carries out as it is (kernel.cpp). -1 with errno if it fails.
long enter(long number, const long* words);
template <class... T>
long kernel(long number, T... arguments) {
  const long words[6] = {(long)arguments...};
  return enter(number, words);
}

}  // namespace zerokit::files
