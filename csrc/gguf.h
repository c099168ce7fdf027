// Reading GGUF files that may be wrong in any way: metadata, tensor directory, mapped tensor data; split files as one.
//
// Whatever the bytes say, the outcome is a whole file or a FileError with one line; nothing is read outside the mapping. What it does
// not know: whether the numbers in the tensors make sense, and what happens to a file that another program cuts while it is mapped.
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
  std::vector<uint64_t> shape;      // as stored: inputs first, e.g. [k, n]; 1 to 4 sizes, each 1 to 2³¹ − 1
  const uint8_t* data = nullptr;    // into the mapping, on a multiple of 8; nullptr where the type is not known
  uint64_t bytes = 0;               // 0 where the type is not known
};

// What is kept of an array of strings.
struct Strings {
  uint64_t count = 0;
};

// A metadata value: non-negative kinds of integer, signed kinds, floats, … Arrays of numbers (and truths, as 0 and 1) keep their numbers.
using Value = std::variant<uint64_t, int64_t, double, bool, std::string, std::vector<double>, Strings>;

class GgufFile {
 public:
  // Opens `path` and, where it is the first of a split model, the files that belong to it. Throws FileError.
  explicit GgufFile(const std::string& path);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const;                         // of the first part
  const Value* find(std::string_view key) const;           // nullptr: not there
  const Tensor* tensor(std::string_view name) const;       // nullptr: not there
  const std::vector<Tensor>& tensors() const;              // names are distinct, and so are the bytes they point at
  uint64_t file_bytes() const;                             // of all parts
  void release(const Tensor& tensor) const;                // its pages need not stay in memory

  // Values with a check: FileError names the key where it is missing (and no default is given), of another kind or out of range.
  uint64_t number(std::string_view key, uint64_t least, uint64_t most) const;
  uint64_t number(std::string_view key, uint64_t least, uint64_t most, uint64_t otherwise) const;
  double real(std::string_view key, double otherwise) const;  // a finite float, or an integer
  std::string text(std::string_view key, std::string_view otherwise) const;

 private:
  struct Part;
  std::vector<Tensor> open(const std::string& path, const std::string& role, std::map<std::string, Value, std::less<>>& values);
  void add(std::vector<Tensor> found, const std::string& path);
  void add_other_parts();
  std::vector<std::unique_ptr<Part>> parts_;
  std::map<std::string, Value, std::less<>> values_;  // of the first part
  std::vector<Tensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

// For messages: a text out of a file in quotes, on one line, in ASCII and not too long; the name of a GGUF tensor type.
std::string in_quotes(std::string_view text);
std::string tensor_type_name(uint32_t type);

}  // namespace headstart
