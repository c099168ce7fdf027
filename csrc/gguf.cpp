// Reads a GGUF file front to back: header, metadata, tensor directory, where each tensor's data lies; then the other parts.
//
// Three rules keep hostile files harmless. Every read goes through a Cursor that knows where the bytes end. No count is believed before
// the bytes left could hold that many, so time and memory are bounded by the size of the file; and no more than kMostKept of it is kept.
#include "gguf.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "file_bytes.h"
#include "pack.h"

namespace headstart {
namespace {

static_assert(std::endian::native == std::endian::little, "the bytes of a file are used as they are");

// Far beyond any real model, and small enough to refuse a damaged file before it costs much.
constexpr uint64_t kMostKeys = 1 << 16, kMostTensors = 1 << 17, kMostStrings = 1 << 24;
constexpr uint64_t kMostKept = 256 << 20;  // bytes of metadata held in memory
constexpr uint64_t kLongestKey = 65535, kLongestName = 255;
constexpr uint64_t kMostAlignment = 1 << 20, kMostParts = 99999;
constexpr uint64_t kSmallestKey = 8 + 4 + 1, kSmallestTensor = 8 + 4 + 8 + 4 + 8;  // bytes of an entry with an empty name

// GGUF's numbers for kinds of value.
enum Kind : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

// Calls `visit` with a value of the C++ type that `kind` stands for; false: it is not a kind of number. A truth is a number here.
template <class Visit>
bool with_number(uint32_t kind, const Visit& visit) {
  switch (kind) {
    case kU8: visit(uint8_t{}); return true;
    case kI8: visit(int8_t{}); return true;
    case kU16: visit(uint16_t{}); return true;
    case kI16: visit(int16_t{}); return true;
    case kU32: visit(uint32_t{}); return true;
    case kI32: visit(int32_t{}); return true;
    case kF32: visit(float{}); return true;
    case kBool: visit(bool{}); return true;
    case kU64: visit(uint64_t{}); return true;
    case kI64: visit(int64_t{}); return true;
    case kF64: visit(double{}); return true;
    default: return false;
  }
}

// Header, metadata and tensor directory of one file.
class Reader {
 public:
  explicit Reader(const FileBytes& file)
      : path_(file.path()), data_(file.data()), size_(file.size()), in_(path_, data_, size_) {}

  void read(Values& values, std::vector<Tensor>& tensors);

 private:
  void check_magic();
  uint64_t count(const char* noun, uint64_t most, uint64_t smallest);
  void keep(uint64_t bytes);
  Value value(uint32_t kind);
  Value array();
  template <class T> T number();
  Tensor tensor();
  void place(Tensor& tensor, uint64_t offset, uint64_t start, uint64_t alignment) const;

  const std::string& path_;
  const uint8_t* data_;
  uint64_t size_;
  Cursor in_;
  uint64_t kept_ = 0;
  std::vector<uint64_t> offsets_;  // of the tensors, as the directory gives them
};

void Reader::read(Values& values, std::vector<Tensor>& tensors) {
  check_magic();
  const auto version = in_.take<uint32_t>();
  if (version != 0 && (version & 0xffff) == 0) refuse(path_, "is a big-endian GGUF file; only little-endian ones are read");
  if (version != 2 && version != 3) refuse(path_, "is of GGUF version " + std::to_string(version) + "; versions 2 and 3 are read");
  const uint64_t num_tensors = count("tensor", kMostTensors, kSmallestTensor), num_keys = count("key", kMostKeys, kSmallestKey);

  for (uint64_t i = 0; i < num_keys; i++) {
    in_.about(nullptr, {});
    const std::string_view key = in_.text(kLongestKey);
    in_.about("key", key);
    keep(key.size() + sizeof(Value));
    Value found = value(in_.take<uint32_t>());
    if (!values.emplace(key, std::move(found)).second) in_.fail("it is there twice");
  }
  const uint64_t usual = 32, alignment = number_in(path_, values, "general.alignment", 8, kMostAlignment, &usual);
  if (!std::has_single_bit(alignment))
    refuse(path_, "key 'general.alignment' is " + std::to_string(alignment) + ", expected a power of two");

  tensors.reserve(num_tensors);
  for (uint64_t i = 0; i < num_tensors; i++) tensors.push_back(tensor());
  const uint64_t start = (in_.position() + alignment - 1) & ~(alignment - 1);
  for (uint64_t i = 0; i < num_tensors; i++) place(tensors[i], offsets_[i], start, alignment);
  check_overlaps(path_, tensors);
}

// People open all sorts of files; the common ones are named.
void Reader::check_magic() {
  const std::string_view start(reinterpret_cast<const char*>(data_), static_cast<size_t>(std::min<uint64_t>(size_, 32)));
  if (start.starts_with("GGUF")) return void(in_.skip(4));
  constexpr std::pair<std::string_view, const char*> known[] = {
      {"version https://git-lfs", "a Git LFS pointer, not the file it stands for; run `git lfs pull`"},
      {"<", "a web page; the download went wrong"},
      {"PK\x03\x04", "a zip or PyTorch file"},
      {"lmgg", "a file older than GGUF; convert the model again"},
      {"tjgg", "a file older than GGUF; convert the model again"}};
  for (const auto& [magic, what] : known)
    if (start.starts_with(magic)) refuse(path_, std::string("is not a GGUF file but ") + what);
  if (start.size() > 9 && start.substr(8, 2) == "{\"") refuse(path_, "is not a GGUF file but a safetensors file");
  refuse(path_, "is not a GGUF file");
}

// How many of something follow. Their entries have `smallest` bytes or more, so the rest of the file limits the number.
uint64_t Reader::count(const char* noun, uint64_t most, uint64_t smallest) {
  const auto n = in_.take<uint64_t>();
  if (n > most)
    refuse(path_, "is damaged: " + plural(n, noun) + " announced, more than any model has (" + std::to_string(most) + ")");
  if (n > in_.left() / smallest)
    refuse(path_, "is cut short or damaged: " + plural(n, noun) + " announced, but it ends at byte " + std::to_string(size_));
  return n;
}

void Reader::keep(uint64_t bytes) {
  if (bytes > kMostKept - kept_) in_.fail("the metadata needs over " + std::to_string(kMostKept >> 20) + " MiB of memory, more than any model's");
  kept_ += bytes;
}

template <class T>
T Reader::number() {
  if constexpr (std::is_same_v<T, bool>) {
    const auto byte = in_.take<uint8_t>();
    if (byte > 1) in_.fail("true or false stored as " + std::to_string(byte) + ", expected 0 or 1");
    return byte == 1;
  } else {
    return in_.take<T>();
  }
}

Value Reader::value(uint32_t kind) {
  Value out;
  const auto scalar = [&]<class T>(T) {
    const T x = number<T>();
    if constexpr (std::is_same_v<T, bool>) out = x;
    else if constexpr (std::is_floating_point_v<T>) out = static_cast<double>(x);
    else if constexpr (std::is_signed_v<T>) out = static_cast<int64_t>(x);
    else out = static_cast<uint64_t>(x);
  };
  if (with_number(kind, scalar)) return out;
  if (kind == kArray) return array();
  if (kind != kString) in_.fail("value type " + std::to_string(kind) + " is not one of GGUF's");
  const std::string_view text = in_.text(kMostKept);
  keep(text.size());
  return std::string(text);
}

Value Reader::array() {
  const auto kind = in_.take<uint32_t>();
  const auto length = in_.take<uint64_t>();
  if (kind == kArray) in_.fail("lists of lists are not supported");
  if (kind == kString) {
    if (length > kMostStrings)
      in_.fail("a list of " + plural(length, "text") + ", more than any model has (" + std::to_string(kMostStrings) + ")");
    for (uint64_t i = 0; i < length; i++) in_.skip(in_.take<uint64_t>());
    return Strings{length};
  }
  std::vector<double> out;
  const auto numbers = [&]<class T>(T) {
    if (length > in_.left() / sizeof(T)) in_.skip(length, sizeof(T));  // fails
    keep(length * sizeof(double));                                     // cannot overflow: the file holds `length` bytes
    out.reserve(length);
    for (uint64_t i = 0; i < length; i++) out.push_back(static_cast<double>(number<T>()));
  };
  if (!with_number(kind, numbers)) in_.fail("a list of value type " + std::to_string(kind) + ", which is not one of GGUF's");
  return out;
}

// One entry of the directory; where its data lies is known only when the whole directory has been read.
Tensor Reader::tensor() {
  Tensor t;
  in_.about(nullptr, {});
  const std::string_view name = in_.text(kLongestName);
  in_.about("tensor", name);
  t.name = name;
  const auto dims = in_.take<uint32_t>();
  if (dims < 1 || dims > 4) in_.fail("a shape of " + plural(dims, "size") + ", expected 1 to 4");
  uint64_t elements = 1;
  for (uint32_t i = 0; i < dims; i++) {
    const auto size = in_.take<uint64_t>();
    if (size < 1 || size > std::numeric_limits<int32_t>::max())
      in_.fail("a size of " + std::to_string(size) + " in its shape, expected 1 to 2147483647");
    if (elements > (uint64_t{1} << 62) / size) in_.fail("its shape has more elements than any file can hold");
    elements *= size;
    t.shape.push_back(size);
  }
  t.type = in_.take<uint32_t>();
  offsets_.push_back(in_.take<uint64_t>());
  return t;
}

bool is_known(uint32_t type) { return std::strcmp(type_name(static_cast<Type>(type)), "unknown") != 0; }

void Reader::place(Tensor& t, uint64_t offset, uint64_t start, uint64_t alignment) const {
  const auto fail = [&](const std::string& what) { refuse(path_, "tensor " + in_quotes(t.name) + ": " + what); };
  if (offset % alignment != 0)
    fail("its data starts at offset " + std::to_string(offset) + ", not a multiple of the alignment " + std::to_string(alignment));
  if (!is_known(t.type)) return;
  const Type type = static_cast<Type>(t.type);
  const auto block = static_cast<uint64_t>(block_size(type));
  if (t.shape[0] % block != 0)
    fail("rows of " + std::to_string(t.shape[0]) + " inputs, which is not a multiple of " + std::to_string(block) + " as type " +
         type_name(type) + " needs");
  uint64_t blocks = t.shape[0] / block;
  for (size_t i = 1; i < t.shape.size(); i++) blocks *= t.shape[i];
  const uint64_t room = start < size_ && offset < size_ - start ? size_ - start - offset : 0;
  if (blocks > room / block_bytes(type))
    fail("the file is cut short or damaged: its " + std::to_string(blocks) + " × " + std::to_string(block_bytes(type)) + " bytes at offset " +
         std::to_string(offset) + " of the data end beyond the file's " + std::to_string(size_) + " bytes");
  t.data = data_ + start + offset;
  t.bytes = blocks * block_bytes(type);
}

// The end of a part's file name: number `index` (from 0) of `count`.
std::string part_suffix(uint64_t index, uint64_t count) {
  char text[64];
  std::snprintf(text, sizeof text, "-%05llu-of-%05llu.gguf", static_cast<unsigned long long>(index + 1), static_cast<unsigned long long>(count));
  return text;
}

}  // namespace

GgufFile::GgufFile(const std::string& path) : WeightFile(path, false) {
  add(open(path, "", values_), path);
  add_other_parts();
}

std::vector<Tensor> GgufFile::open(const std::string& path, const std::string& role, Values& values) {
  std::vector<Tensor> found;
  Reader(open_part(path, role)).read(values, found);
  return found;
}

void GgufFile::add_other_parts() {
  const uint64_t count = number("split.count", 0, kMostParts, 1);
  if (count <= 1) return;
  const uint64_t mine = number("split.no", 0, count - 1);
  const std::string first = path(), suffix = part_suffix(mine, count), of = " of " + std::to_string(count);
  const bool named = first.ends_with(suffix);
  const std::string stem = first.substr(0, first.size() - (named ? suffix.size() : 0));
  if (mine > 0)
    refuse(first, "is part " + std::to_string(mine + 1) + of + " of a model; open the first" +
                      (named ? ", " + shown(stem + part_suffix(0, count)) : " instead"));
  if (!named)
    refuse(first, "is the first" + of + " parts of a model; for the others to be found, its name must end in " + suffix);
  for (uint64_t i = 1; i < count; i++) {
    const std::string next = stem + part_suffix(i, count);
    Values values;
    std::vector<Tensor> found = open(next, "; it is part " + std::to_string(i + 1) + of + " of the model", values);
    number_in(next, values, "split.no", i, i, nullptr);
    number_in(next, values, "split.count", count, count, nullptr);
    add(std::move(found), next);
  }
  const uint64_t announced = number("split.tensors.count", 0, std::numeric_limits<uint64_t>::max(), tensors_.size());
  if (announced != tensors_.size())
    refuse(first, plural(announced, "tensor") + " announced for all parts, but they hold " + std::to_string(tensors_.size()));
}

}  // namespace headstart
