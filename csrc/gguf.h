// Reading GGUF files that may be wrong in any way: metadata, tensor directory, mapped tensor data; split files as one.
//
// Whatever the bytes say, the outcome is a whole file or a FileError with one line; nothing is read outside the mapping.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels.h"

namespace headstart {

struct FileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Tensor {
  std::string name;
  uint32_t type = 0;                // GGUF's number; may be one no kernel knows
  std::vector<uint64_t> shape;      // as stored: inputs first, e.g. [k, n]
  const uint8_t* data = nullptr;    // into the mapping
  uint64_t bytes = 0;               // 0 where the type is not known
};

// A metadata value. Arrays of numbers keep their numbers; arrays of strings are not needed here and only counted.
using Value = std::variant<uint64_t, int64_t, double, bool, std::string, std::vector<double>>;

class GgufFile {
 public:
  // Opens `path` and, where it is the first of a split model, the files that belong to it. Throws FileError.
  explicit GgufFile(const std::string& path);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const Value* find(std::string_view key) const;           // nullptr: not there
  const Tensor* tensor(std::string_view name) const;       // nullptr: not there
  const std::vector<Tensor>& tensors() const;
  uint64_t file_bytes() const;                             // of all parts
  void release(const Tensor& tensor) const;                // its pages need not stay in memory

  // Values with a check: FileError names the key where it is missing (and no default is given), of another kind or out of range.
  uint64_t number(std::string_view key, uint64_t least, uint64_t most) const;
  uint64_t number(std::string_view key, uint64_t least, uint64_t most, uint64_t otherwise) const;
  double real(std::string_view key, double otherwise) const;
  std::string text(std::string_view key, std::string_view otherwise) const;

 private:
  struct Part;
  std::vector<std::unique_ptr<Part>> parts_;
  std::map<std::string, Value, std::less<>> values_;
  std::vector<Tensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

}  // namespace headstart
