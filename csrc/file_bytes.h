// The bytes of a file: mapped into memory, then taken one by one with a check.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

#if __has_include(<sys/mman.h>) && !defined(HEADSTART_NO_MMAP)
#define HEADSTART_MMAP 1
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#else
#include <fstream>
#include <memory>
#endif

#include "weight_file.h"

namespace headstart {

// A path as it is, but on one line.
inline std::string shown(const std::string& path) {
  std::string out = path;
  std::replace_if(out.begin(), out.end(), [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; }, '?');
  return out;
}

[[noreturn]] inline void refuse(const std::string& path, const std::string& what) { throw FileError(shown(path) + ": " + what); }

inline std::string plural(uint64_t count, const char* noun) { return std::to_string(count) + " " + noun + (count == 1 ? "" : "s"); }

// One file in memory. Opening a pipe would wait for its other end, so what is not a plain file is refused first.
class FileBytes {
 public:
  // `role`: what to add where the file is not there.
  explicit FileBytes(const std::string& path, const std::string& role = "") : path_(path) {
    namespace fs = std::filesystem;
    if (path.find('\0') != std::string::npos) refuse(path, "the path holds a zero byte");
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (status.type() == fs::file_type::not_found) refuse(path, "no such file" + role);
    if (error) refuse(path, "cannot be opened: " + error.message());
    if (fs::is_directory(status)) refuse(path, "is a folder, not a file of weights");
    if (!fs::is_regular_file(status)) refuse(path, "is a pipe or device, not a file of weights");
    open();
  }
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  const std::string& path() const { return path_; }
  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }

  // The pages of these bytes may leave memory; they come back when they are read.
  static void release(const uint8_t* data, uint64_t bytes);

 private:
  void open();
  std::string path_;
  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
#if !defined(HEADSTART_MMAP)
  std::unique_ptr<uint8_t[]> whole_;
#endif
};

#if defined(HEADSTART_MMAP)

inline void FileBytes::open() {
  struct Descriptor {
    int number;
    ~Descriptor() {
      if (number >= 0) close(number);  // a mapping outlives it
    }
  };
  const auto reason = [] { return std::generic_category().message(errno); };
  const Descriptor file{::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat about = {};
  if (file.number < 0 || fstat(file.number, &about) != 0) refuse(path_, "cannot be opened: " + reason());
  size_ = static_cast<uint64_t>(about.st_size);
  if (size_ == 0) refuse(path_, "is empty");
  if (size_ > std::numeric_limits<size_t>::max()) refuse(path_, "is too large for this machine");
  void* memory = mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, file.number, 0);
  if (memory == MAP_FAILED) refuse(path_, "cannot be mapped into memory: " + reason());
  data_ = static_cast<const uint8_t*>(memory);
}

inline FileBytes::~FileBytes() { munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(size_)); }

inline void FileBytes::release(const uint8_t* data, uint64_t bytes) {
  // Only whole pages: a page at an end belongs to the neighbour too.
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), start = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (start + page - 1) / page * page, last = (start + static_cast<uintptr_t>(bytes)) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

#else  // read whole; so that the address sanitizer sees every step beyond the end, the fuzzer has it this way too

inline void FileBytes::open() {
  std::ifstream file(path_, std::ios::binary);
  std::error_code error;
  size_ = std::filesystem::file_size(path_, error);
  if (!file || error) refuse(path_, "cannot be opened");
  if (size_ == 0) refuse(path_, "is empty");
  if (size_ > std::numeric_limits<size_t>::max() / 2) refuse(path_, "is too large for this machine");
  whole_.reset(new uint8_t[static_cast<size_t>(size_)]);
  if (!file.read(reinterpret_cast<char*>(whole_.get()), static_cast<std::streamsize>(size_))) refuse(path_, "cannot be read to its end");
  data_ = whole_.get();
}

inline FileBytes::~FileBytes() = default;

inline void FileBytes::release(const uint8_t*, uint64_t) {}

#endif

// The bytes of one file, taken from front to back. A failure names the key or tensor that is being read.
class Cursor {
 public:
  Cursor(const std::string& path, const uint8_t* data, uint64_t size) : path_(path), data_(data), size_(size) {}

  uint64_t position() const { return at_; }
  uint64_t left() const { return size_ - at_; }
  void about(const char* kind, std::string_view name) { kind_ = kind, name_ = name; }

  [[noreturn]] void fail(const std::string& what) const { refuse(path_, kind_ ? kind_ + (" " + in_quotes(name_)) + ": " + what : what); }

  // The next `count` things of `size` bytes each.
  const uint8_t* skip(uint64_t count, uint64_t size = 1) {
    if (count > left() / size) cut_short(count, size);
    const uint8_t* here = data_ + at_;
    at_ += count * size;
    return here;
  }

  template <class T>
  T take() {
    T x;
    std::memcpy(&x, skip(sizeof(T)), sizeof(T));
    return x;
  }

  std::string_view text(uint64_t longest) {
    const uint64_t length = take<uint64_t>();
    const auto* here = reinterpret_cast<const char*>(skip(length));
    if (length > longest) fail("a text of " + plural(length, "byte") + "; at most " + std::to_string(longest) + " are allowed here");
    return {here, static_cast<size_t>(length)};
  }

 private:
  [[noreturn]] void cut_short(uint64_t count, uint64_t size) const {
    const std::string wanted = std::to_string(count) + (size == 1 ? "" : " × " + std::to_string(size));
    fail("the file is cut short or damaged: " + wanted + " bytes expected at byte " + std::to_string(at_) + ", but it ends at byte " +
         std::to_string(size_));
  }

  const std::string& path_;
  const uint8_t* data_;
  uint64_t size_, at_ = 0;
  const char* kind_ = nullptr;
  std::string_view name_;
};

}  // namespace headstart
