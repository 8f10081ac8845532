#include "host_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

namespace zerokit {
namespace {

constexpr int64_t kMostFromNothing = int64_t{512} << 20;
// A result has at most this many bytes for one of the data it is made of: int64 from uint8.
constexpr int64_t kResultsPerData = 8;

std::atomic<int64_t> from_nothing{0};
thread_local int64_t allowed = std::numeric_limits<int64_t>::max();

int64_t page_size() {
  static const int64_t size = ::sysconf(_SC_PAGESIZE);
  return size;
}

}  // namespace

int64_t resident_bytes(const void* begin, int64_t bytes, int64_t enough) {
  // mincore(2) would leave out a page that was swapped out; the page map tells both.
  // A fork's page map is its own.
  static thread_local int page_map = -1;
  static thread_local pid_t process = 0;
  if (process != ::getpid()) {
    process = ::getpid();
    page_map = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  }
  constexpr uint64_t kPresentOrSwapped = uint64_t{3} << 62;
  constexpr int64_t kPagesAtOnce = 1 << 13;
  static thread_local std::vector<uint64_t> entries(kPagesAtOnce);
  const auto address = reinterpret_cast<int64_t>(begin);
  const int64_t first = address / page_size();
  const int64_t pages = (address + bytes + page_size() - 1) / page_size() - first;
  int64_t found = 0;
  for (int64_t done = 0; done < pages && found * page_size() <= enough; done += kPagesAtOnce) {
    const int64_t count = std::min(kPagesAtOnce, pages - done);
    if (::pread(page_map, entries.data(), count * 8, (first + done) * 8) != count * 8) return bytes;
    found += std::count_if(entries.begin(), entries.begin() + count,
                           [](uint64_t entry) { return (entry & kPresentOrSwapped) != 0; });
  }
  return std::min(bytes, found * page_size());
}

Extent::Extent(const at::Tensor& tensor)
    : begin(static_cast<char*>(const_cast<void*>(tensor.storage().data())) +
            tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize())),
      bytes(0) {
  if (tensor.numel() == 0) return;
  int64_t last = 0;
  for (int64_t index = 0; index < tensor.dim(); ++index) last += (tensor.size(index) - 1) * tensor.stride(index);
  bytes = (last + 1) * static_cast<int64_t>(tensor.itemsize());
}

void Reach::add(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.has_storage() || tensor.numel() == 0) return;
  const Extent extent(tensor);
  // Of an expanded tensor, each element once.
  const int64_t bytes = std::min(extent.bytes, tensor.numel() * static_cast<int64_t>(tensor.itemsize()));
  const Block* block = block_of(tensor.storage());
  if (block == nullptr || !block->own_pages) {
    data += bytes;
    return;
  }
  const int64_t resident = std::min(bytes, resident_bytes(extent.begin, extent.bytes));
  data += std::max<int64_t>(0, resident - block->from_nothing);
  nothing += bytes - resident;
}

int64_t Reach::most() const { return std::max(kMostFromNothing - from_nothing.load(), data * kResultsPerData); }

bool Reach::explains(int64_t bytes) const { return bytes <= data * kResultsPerData; }

void count_from_nothing(Block& block, int64_t bytes) {
  // The pinned allocator keeps its blocks.
  if (block.space != Space::pageable || !block.own_pages) return;
  const int64_t added = std::min(bytes, block.bytes - block.from_nothing);
  block.from_nothing += added;
  from_nothing += added;
}

void uncount_from_nothing(Block& block) {
  from_nothing -= block.from_nothing;
  block.from_nothing = 0;
}

PagesAllowed::PagesAllowed(int64_t bytes) : around_(allowed) { allowed = bytes; }
PagesAllowed::~PagesAllowed() { allowed = around_; }

void take_allowed_pages(int64_t bytes) {
  if (bytes > allowed) throw TooManyPages();
  if (allowed != std::numeric_limits<int64_t>::max()) allowed -= bytes;
}

namespace {

// The whole pages in a memory.
Extent pages_in(const Extent& extent) {
  const auto page = static_cast<uint64_t>(page_size());
  const auto begin = reinterpret_cast<uint64_t>(extent.begin), end = begin + extent.bytes;
  const uint64_t first = std::min(end, (begin + page - 1) / page * page), last = std::max(first, end / page * page);
  return {reinterpret_cast<char*>(first), static_cast<int64_t>(last - first)};
}

}  // namespace

void hand_back_pages(const Extent& extent) {
  const Extent pages = pages_in(extent);
  if (pages.bytes > 0) ::madvise(pages.begin, pages.bytes, MADV_DONTNEED);
}

void zero_pages(Block& block, const Extent& extent) {
  char* const end = extent.begin + extent.bytes;
  if (extent.begin == block.data && extent.bytes == block.bytes) {
    ::madvise(block.data, block.bytes, MADV_DONTNEED);
    uncount_from_nothing(block);
    block.contents = Contents::untouched;
    return;
  }
  const Extent pages = pages_in(extent);
  char* const last = pages.begin + pages.bytes;
  std::memset(extent.begin, 0, pages.begin - extent.begin);
  hand_back_pages(extent);
  std::memset(last, 0, end - last);
}

void copy_resident(char* target, const char* source, int64_t bytes) {
  constexpr int64_t kAtOnce = int64_t{1} << 20;
  for (int64_t done = 0; done < bytes; done += kAtOnce) {
    const int64_t part = std::min(kAtOnce, bytes - done);
    if (resident_bytes(source + done, part, 0) > 0) std::memcpy(target + done, source + done, part);
  }
}

}  // namespace zerokit
