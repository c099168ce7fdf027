// Look-ups with a check, and the directory of tensors that was read elsewhere, checked against the files it speaks of.
#include "weight_file.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "file_bytes.h"
#include "pack.h"

namespace headstart {
namespace {

// What a value is, in an error message.
const char* kind_of(const Value& value) {
  constexpr const char* names[] = {
      "a whole number", "a whole number", "a fraction", "true or false", "a text", "a list of numbers", "a list of texts"};
  static_assert(std::size(names) == std::variant_size_v<Value>);
  return names[value.index()];
}

bool is_float(uint32_t type) {
  return type == static_cast<uint32_t>(Type::F32) || type == static_cast<uint32_t>(Type::F16) || type == static_cast<uint32_t>(Type::BF16);
}

}  // namespace

uint64_t number_in(const std::string& path, const Values& values, std::string_view key, uint64_t least, uint64_t most,
                   const uint64_t* otherwise) {
  const auto found = values.find(key);
  if (found == values.end()) {
    if (otherwise) return *otherwise;
    refuse(path, "key " + in_quotes(key) + " is missing");
  }
  const std::string range = std::to_string(least) + (least == most ? "" : " to " + std::to_string(most));
  const std::string expected = ", expected " + (least == most ? range : "a whole number from " + range);
  uint64_t x = 0;
  if (const auto* natural = std::get_if<uint64_t>(&found->second)) x = *natural;
  else if (const auto* integer = std::get_if<int64_t>(&found->second)) {
    if (*integer < 0) refuse(path, "key " + in_quotes(key) + " is " + std::to_string(*integer) + expected);
    x = static_cast<uint64_t>(*integer);
  } else refuse(path, "key " + in_quotes(key) + " is " + kind_of(found->second) + expected);
  if (x < least || x > most) refuse(path, "key " + in_quotes(key) + " is " + std::to_string(x) + expected);
  return x;
}

void check_overlaps(const std::string& path, const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> sorted;
  for (const Tensor& t : tensors)
    if (t.bytes > 0) sorted.push_back(&t);
  std::sort(sorted.begin(), sorted.end(), [](const Tensor* a, const Tensor* b) { return a->data < b->data; });
  for (size_t i = 1; i < sorted.size(); i++)
    if (sorted[i - 1]->data + sorted[i - 1]->bytes > sorted[i]->data)
      refuse(path, "tensors " + in_quotes(sorted[i - 1]->name) + " and " + in_quotes(sorted[i]->name) + " overlap; the file is damaged");
}

struct WeightFile::Part : FileBytes {
  using FileBytes::FileBytes;
};

WeightFile::WeightFile(std::string path, bool as_trained) : path_(std::move(path)), as_trained_(as_trained) {}

WeightFile::~WeightFile() = default;

const FileBytes& WeightFile::open_part(const std::string& path, const std::string& role) {
  return *parts_.emplace_back(std::make_unique<Part>(path, role));
}

void WeightFile::add(std::vector<Tensor> found, const std::string& path) {
  for (Tensor& t : found) {
    if (!by_name_.emplace(t.name, tensors_.size()).second) refuse(path, "tensor " + in_quotes(t.name) + ": it is there twice");
    tensors_.push_back(std::move(t));
  }
}

ListedFile::ListedFile(const std::string& path, const std::vector<std::string>& files, const std::vector<Listing>& tensors, Values values)
    : WeightFile(path, true) {
  values_ = std::move(values);
  for (const std::string& file : files) open_part(file);
  std::vector<Tensor> found;
  for (const Listing& listed : tensors) {
    if (listed.file >= parts_.size()) refuse(path, "tensor " + in_quotes(listed.name) + ": it lies in no file of the model");
    const FileBytes& part = *parts_[listed.file];
    const auto fail = [&](const std::string& what) { refuse(part.path(), "tensor " + in_quotes(listed.name) + ": " + what); };
    if (listed.shape.empty() || listed.shape.size() > 4) fail("a shape of " + plural(listed.shape.size(), "size") + ", expected 1 to 4");
    if (!is_float(listed.type)) fail("its type is " + tensor_type_name(listed.type) + ", expected F32, F16 or BF16");
    uint64_t bytes = block_bytes(static_cast<Type>(listed.type));
    for (const uint64_t size : listed.shape) {
      if (size < 1 || size > std::numeric_limits<int32_t>::max()) fail("a size of " + std::to_string(size) + " in its shape, expected 1 to 2147483647");
      if (bytes > part.size() / size) fail("the file is cut short or damaged: it is smaller than the tensor");
      bytes *= size;
    }
    if (listed.bytes != bytes) fail("it holds " + plural(listed.bytes, "byte") + ", but its shape and type need " + std::to_string(bytes));
    if (listed.offset > part.size() || bytes > part.size() - listed.offset)
      fail("the file is cut short or damaged: its data ends beyond the file's " + plural(part.size(), "byte"));
    Tensor t;
    t.name = listed.name;
    t.type = listed.type;
    t.shape = listed.shape;
    t.data = part.data() + listed.offset;
    t.bytes = bytes;
    found.push_back(std::move(t));
  }
  check_overlaps(path, found);
  add(std::move(found), path);
}

const Value* WeightFile::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

const Tensor* WeightFile::tensor(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

uint64_t WeightFile::file_bytes() const {
  uint64_t bytes = 0;
  for (const auto& part : parts_) bytes += part->size();
  return bytes;
}

void WeightFile::release(const uint8_t* data, uint64_t bytes) { FileBytes::release(data, bytes); }

uint64_t WeightFile::number(std::string_view key, uint64_t least, uint64_t most) const {
  return number_in(path(), values_, key, least, most, nullptr);
}

uint64_t WeightFile::number(std::string_view key, uint64_t least, uint64_t most, uint64_t otherwise) const {
  return number_in(path(), values_, key, least, most, &otherwise);
}

double WeightFile::real(std::string_view key, double otherwise) const {
  const Value* value = find(key);
  if (!value) return otherwise;
  if (const auto* natural = std::get_if<uint64_t>(value)) return static_cast<double>(*natural);
  if (const auto* integer = std::get_if<int64_t>(value)) return static_cast<double>(*integer);
  const auto* x = std::get_if<double>(value);
  if (!x) refuse(path(), "key " + in_quotes(key) + " is " + kind_of(*value) + ", expected a number");
  if (!std::isfinite(*x)) refuse(path(), "key " + in_quotes(key) + " is not a finite number");
  return *x;
}

std::string WeightFile::text(std::string_view key, std::string_view otherwise) const {
  const Value* value = find(key);
  if (!value) return std::string(otherwise);
  const auto* text = std::get_if<std::string>(value);
  if (!text) refuse(path(), "key " + in_quotes(key) + " is " + kind_of(*value) + ", expected a text");
  return *text;
}

std::string in_quotes(std::string_view text) {
  constexpr size_t longest = 80;
  std::string out = "'";
  for (const char c : text.substr(0, longest)) {
    char code[5];
    std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
    if (c >= ' ' && c <= '~' && c != '\'' && c != '\\') out += c;
    else out += code;
  }
  return out + (text.size() > longest ? "…'" : "'");
}

std::string tensor_type_name(uint32_t type) {
  constexpr const char* names[] = {
      "F32", "F16", "Q4_0", "Q4_1", nullptr, nullptr, "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
      "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64",
      "F64", "IQ1_M", "BF16", nullptr, nullptr, nullptr, "TQ1_0", "TQ2_0", nullptr, nullptr, nullptr, "MXFP4", "NVFP4", "Q1_0"};
  if (type < std::size(names) && names[type]) return names[type];
  return "number " + std::to_string(type);
}

}  // namespace headstart
