// Weights on disk as the engine wants them: metadata by key, tensors by name, mapped into memory. Who fills it in: GgufFile (gguf.h) from
// a GGUF file, ListedFile from files whose directory was read elsewhere.
//
// Whatever the bytes or the directory say, the outcome is a whole model file or a FileError with one line; nothing is read outside the
// mappings. What it does not know: whether the numbers in the tensors make sense, and what happens to a file that another program cuts
// while it is mapped.
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

class FileBytes;

struct FileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Tensor {
  std::string name;
  uint32_t type = 0;                // GGUF's number; may be one no kernel knows
  std::vector<uint64_t> shape;      // as stored: inputs first, e.g. [k, n]; 1 to 4 sizes, each 1 to 2³¹ − 1
  const uint8_t* data = nullptr;    // into the mapping (of a GGUF file: on a multiple of 8); nullptr where the type is not known
  uint64_t bytes = 0;               // 0 where the type is not known
};

// What is kept of an array of strings.
struct Strings {
  uint64_t count = 0;
};

// A metadata value: non-negative kinds of integer, signed kinds, floats, … Arrays of numbers (and truths, as 0 and 1) keep their numbers.
using Value = std::variant<uint64_t, int64_t, double, bool, std::string, std::vector<double>, Strings>;

using Values = std::map<std::string, Value, std::less<>>;

class WeightFile {
 public:
  virtual ~WeightFile();
  WeightFile(const WeightFile&) = delete;
  WeightFile& operator=(const WeightFile&) = delete;

  const std::string& path() const { return path_; }        // of the file, the first part or the folder
  bool as_trained() const { return as_trained_; }          // rotary pairs lie half a head apart and Gemma's norms are less one, as
                                                           // transformers keeps them; GGUF files have them converted
  const Values& values() const { return values_; }
  const Value* find(std::string_view key) const;           // nullptr: not there
  const Tensor* tensor(std::string_view name) const;       // nullptr: not there
  const std::vector<Tensor>& tensors() const { return tensors_; }  // names are distinct, and so are the bytes they point at
  uint64_t file_bytes() const;                             // of all parts
  static void release(const uint8_t* data, uint64_t bytes);  // these pages need not stay in memory

  // Values with a check: FileError names the key where it is missing (and no default is given), of another kind or out of range.
  uint64_t number(std::string_view key, uint64_t least, uint64_t most) const;
  uint64_t number(std::string_view key, uint64_t least, uint64_t most, uint64_t otherwise) const;
  double real(std::string_view key, double otherwise) const;  // a finite float, or an integer
  std::string text(std::string_view key, std::string_view otherwise) const;

 protected:
  struct Part;  // its bytes
  WeightFile(std::string path, bool as_trained);
  const FileBytes& open_part(const std::string& path, const std::string& role = "");
  void add(std::vector<Tensor> found, const std::string& path);
  std::string path_;
  bool as_trained_;
  std::vector<std::unique_ptr<Part>> parts_;
  Values values_;
  std::vector<Tensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

// Where a tensor lies, as a directory says that was read elsewhere.
struct Listing {
  std::string name;
  uint32_t type = 0;
  std::vector<uint64_t> shape;  // inputs first
  size_t file = 0;
  uint64_t offset = 0, bytes = 0;
};

class ListedFile final : public WeightFile {
 public:
  // `files` hold the tensors, `path` names them together. Throws FileError for what does not fit the files.
  ListedFile(const std::string& path, const std::vector<std::string>& files, const std::vector<Listing>& tensors, Values values);
};

// A whole number within its range; `otherwise` where it is not there, unless that is nullptr. Throws FileError.
uint64_t number_in(const std::string& path, const Values& values, std::string_view key, uint64_t least, uint64_t most, const uint64_t* otherwise);

// Tensors whose bytes overlap are refused: else a small file could stand for any amount of weights.
void check_overlaps(const std::string& path, const std::vector<Tensor>& tensors);

// For messages: a text out of a file in quotes, on one line, in ASCII and not too long; the name of a GGUF tensor type.
std::string in_quotes(std::string_view text);
std::string tensor_type_name(uint32_t type);

}  // namespace headstart
