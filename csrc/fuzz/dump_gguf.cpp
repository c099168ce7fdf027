// What GgufFile sees in a file, for check_gguf.py to compare with the `gguf` package: `dump_gguf FILE [KEY…]`.
//
// A line a key: its value. A line a tensor: name, type, shape, bytes, checksum. Of texts and tensors a CRC-32, as Python's zlib has it.
// How long opening took goes to stderr.
#include <array>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <string>
#include <variant>
#include <vector>

#include "gguf.h"

namespace {

uint32_t crc32(const uint8_t* data, uint64_t bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t i = 0; i < 256; i++) {
      t[i] = i;
      for (int bit = 0; bit < 8; bit++) t[i] = t[i] >> 1 ^ (t[i] & 1 ? 0xedb88320u : 0);
    }
    return t;
  }();
  uint32_t crc = ~0u;
  for (uint64_t i = 0; i < bytes; i++) crc = crc >> 8 ^ table[(crc ^ data[i]) & 255];
  return ~crc;
}

void print(const headstart::Value& value) {
  const auto text = [](const std::string& s) { std::printf("text %08x", crc32(reinterpret_cast<const uint8_t*>(s.data()), s.size())); };
  if (const auto* natural = std::get_if<uint64_t>(&value)) std::printf("%" PRIu64, *natural);
  if (const auto* integer = std::get_if<int64_t>(&value)) std::printf("%" PRId64, *integer);
  if (const auto* real = std::get_if<double>(&value)) std::printf("%.17g", *real);
  if (const auto* truth = std::get_if<bool>(&value)) std::printf(*truth ? "true" : "false");
  if (const auto* string = std::get_if<std::string>(&value)) text(*string);
  if (const auto* strings = std::get_if<headstart::Strings>(&value)) std::printf("%" PRIu64 " texts", strings->count);
  if (const auto* list = std::get_if<std::vector<double>>(&value)) {
    std::string all;
    for (const double x : *list) {
      char buffer[40];
      std::snprintf(buffer, sizeof buffer, "%.17g,", x);
      all += buffer;
    }
    text(all);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  try {
    const auto start = std::chrono::steady_clock::now();
    const headstart::GgufFile file(argv[1]);
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    std::fprintf(stderr, "opened in %.2f ms: %zu tensors, %" PRIu64 " bytes\n", ms, file.tensors().size(), file.file_bytes());
    for (int i = 2; i < argc; i++) {
      const headstart::Value* value = file.find(argv[i]);
      if (value) print(*value);
      std::printf(value ? "\n" : "missing\n");
    }
    for (const headstart::Tensor& t : file.tensors()) {
      std::printf("%s\t%s\t", t.name.c_str(), headstart::tensor_type_name(t.type).c_str());
      for (const uint64_t size : t.shape) std::printf("%" PRIu64 ",", size);
      std::printf("\t%" PRIu64 "\t%08x\n", t.bytes, crc32(t.data, t.bytes));
      file.release(t.data, t.bytes);
    }
  } catch (const headstart::FileError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
