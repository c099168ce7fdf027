// Damages small GGUF files in many ways and opens them: each must be read whole or refused in one line. With sanitizers, on memory files:
//
//   python csrc/fuzz/make_seeds.py /tmp/seeds
//   g++ -std=c++20 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -DHEADSTART_NO_MMAP -Icsrc csrc/fuzz/fuzz_gguf.cpp
//       csrc/gguf.cpp csrc/weight_file.cpp csrc/pack.cpp -o /tmp/fuzz_gguf && /tmp/fuzz_gguf 200000 1 /tmp/seeds/*.gguf          (rounds, seed, files)
//
// HEADSTART_NO_MMAP reads files into memory of their exact size, so that a step beyond the end is seen; try it without as well. With
// -DHEADSTART_FUZZ_LOAD (and the engine's files; seeds /tmp/seeds/model*) each file is also loaded as a model and scores three tokens. With -DHEADSTART_LIBFUZZER
// and clang's -fsanitize=fuzzer it is a libFuzzer target. After a crash or a hang the files that did it are in the folder named at the start.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gguf.h"
#include "pack.h"
#if defined(HEADSTART_FUZZ_LOAD)
#include "model.h"
#endif

// A small file has no right to much memory: larger requests are crashes.
extern "C" const char* __asan_default_options() { return "max_allocation_size_mb=512:detect_leaks=1:alloc_dealloc_mismatch=1"; }

namespace {

using namespace headstart;
using Bytes = std::vector<uint8_t>;

struct Field {
  size_t at, width;
};

// A valid file and where its numbers are. A model in parts is several of them.
struct Seed {
  std::string name;
  Bytes bytes;
  std::vector<Field> fields;  // counts, lengths, kinds, sizes, offsets, values
  size_t header = 0;          // bytes before the data
};

[[noreturn]] void broken(const std::string& what) {
  std::fprintf(stderr, "broken promise: %s\n", what.c_str());
  std::abort();
}

// Finds the fields of a file that is known to be valid.
class Walker {
 public:
  explicit Walker(Seed& seed) : s_(seed) {
    s_.fields.push_back({0, 4});
    at_ = 4;
    field(4);
    const uint64_t tensors = field(8), keys = field(8);
    for (uint64_t i = 0; i < keys; i++) {
      text();
      value(field(4));
    }
    for (uint64_t i = 0; i < tensors; i++) {
      text();
      for (uint64_t dims = field(4); dims > 0; dims--) field(8);
      field(4);
      field(8);
    }
    s_.header = at_;
  }

 private:
  uint64_t field(size_t width) {
    uint64_t x = 0;
    if (at_ + width > s_.bytes.size()) broken("a seed is not a valid file: " + s_.name);
    std::memcpy(&x, s_.bytes.data() + at_, width);
    s_.fields.push_back({at_, width});
    at_ += width;
    return x;
  }
  void text() {
    const uint64_t length = field(8);
    at_ += length;
  }
  void value(uint64_t kind) {
    constexpr size_t widths[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (kind == 8) return text();
    if (kind != 9) return void(field(widths[kind]));
    const uint64_t inner = field(4);
    for (uint64_t length = field(8); length > 0; length--) value(inner);
  }
  Seed& s_;
  size_t at_ = 0;
};

class Damage {
 public:
  Damage(std::mt19937_64& random, const std::vector<std::vector<Seed>>& all) : random_(random), all_(all) {}

  void apply(const Seed& seed, Bytes& b) {
    for (uint64_t times = 1 + below(below(4) + 1); times > 0 && !b.empty(); times--) once(seed, b);
  }
  uint64_t below(uint64_t n) { return random_() % n; }

 private:
  void once(const Seed& seed, Bytes& b) {
    const size_t header = std::min(seed.header, b.size());
    const Field f = seed.fields[below(seed.fields.size())], g = seed.fields[below(seed.fields.size())];
    const bool fits = f.at + f.width <= b.size(), both = fits && g.at + f.width <= b.size();
    uint64_t x = 0;
    switch (below(12)) {
      case 0: b[below(header)] ^= static_cast<uint8_t>(1u << below(8)); return;
      case 1: b[below(header)] = static_cast<uint8_t>(random_()); return;
      case 2:
      case 3:
      case 4:
        x = interesting(b.size());
        if (fits) std::memcpy(b.data() + f.at, &x, f.width);
        return;
      case 5:
        if (!fits) return;
        std::memcpy(&x, b.data() + f.at, f.width);
        x += below(2) ? below(65) - 32 : uint64_t{1} << below(8 * f.width);
        std::memcpy(b.data() + f.at, &x, f.width);
        return;
      case 6:
        if (both) std::memmove(b.data() + f.at, b.data() + g.at, f.width);
        return;
      case 7: b.resize(below(2) ? below(b.size() + 1) : std::min(b.size(), below(2) ? f.at : below(header + 65))); return;
      case 8: b.insert(b.begin() + static_cast<long>(below(header)), below(64), static_cast<uint8_t>(random_())); return;
      case 9: {
        const size_t from = below(header), count = std::min<size_t>(below(64), b.size() - from);
        b.erase(b.begin() + static_cast<long>(from), b.begin() + static_cast<long>(from + count));
        return;
      }
      case 10: {  // a piece of some file's header over a piece of this one's
        const Seed& other = any_of(any_of(all_));
        const size_t from = other.fields[below(other.fields.size())].at, to = std::min(f.at, b.size());
        const size_t count = std::min({static_cast<size_t>(below(256)), other.bytes.size() - from, b.size() - to});
        std::copy_n(other.bytes.begin() + static_cast<long>(from), count, b.begin() + static_cast<long>(to));
        return;
      }
      default: b[below(b.size())] = static_cast<uint8_t>(random_()); return;
    }
  }

  template <class T>
  const T& any_of(const std::vector<T>& some) { return some[below(some.size())]; }

  uint64_t interesting(uint64_t size) {
    switch (below(6)) {
      case 0: return below(16);
      case 1: return (uint64_t{1} << below(64)) - below(3);
      case 2: return size + below(129) - 64;
      case 3: return ~uint64_t{0} - below(64);
      case 4: return uint64_t{32} << below(16);
      default: return random_();
    }
  }

  std::mt19937_64& random_;
  const std::vector<std::vector<Seed>>& all_;
};

uint64_t checksum_sink = 0;

// All a loader might ask of a file that was accepted.
void use(const GgufFile& file) {
  uint64_t total = 0;
  for (const Tensor& t : file.tensors()) {
    uint64_t elements = 1;
    for (const uint64_t size : t.shape) elements *= size;
    if (file.tensor(t.name) != &t) broken("a tensor is not found by its name");
    if ((t.data == nullptr) != (t.bytes == 0) || reinterpret_cast<uintptr_t>(t.data) % 8 != 0) broken("a tensor's data");
    if (t.data && t.bytes != elements / static_cast<uint64_t>(block_size(static_cast<Type>(t.type))) * block_bytes(static_cast<Type>(t.type))) broken("a tensor's size");
    for (uint64_t i = 0; i < t.bytes; i++) checksum_sink = checksum_sink * 31 + t.data[i];
    total += t.bytes;
    file.release(t.data, t.bytes);
  }
  if (total > file.file_bytes()) broken("more weights than bytes");
  for (const char* key : {"general.alignment", "one.uint8", "one.int64", "one.float64", "text", "texts", "many.bool", "split.count", "llama.block_count"}) {
    try { checksum_sink += file.number(key, 1, 1000); } catch (const FileError&) {}
    try { checksum_sink += file.real(key, 1.0) > 0 ? 1 : 0; } catch (const FileError&) {}
    try { checksum_sink += file.text(key, "").size(); } catch (const FileError&) {}
  }
}

#if defined(HEADSTART_FUZZ_LOAD)
void load(const std::string& path) {
  const auto model = Model::load(std::make_shared<GgufFile>(path), 1, kernels_best(), 64, std::nullopt, nullptr);
  Cache cache(model);
  std::vector<float> logits(static_cast<size_t>(model->config().vocab));
  std::vector<Ask> asks(1);
  asks[0].cache = &cache;
  asks[0].tokens = {0, 0, 0};
  asks[0].num_logits = 1;
  asks[0].logits = logits.data();
  model->score(asks, {});
}
constexpr void (*also)(const std::string&) = load;
#else
constexpr void (*also)(const std::string&) = nullptr;
#endif

// What was said of the file: "" where it was read whole.
std::string examine(const std::string& path) {
  std::string said;
  try {
    const GgufFile file(path);
    use(file);
    if (also) also(path);
  } catch (const FileError& e) {
    said = e.what();
    for (const char c : said)
      if (static_cast<unsigned char>(c) < 32) broken("a message of several lines: " + said);
    if (said.empty() || said.size() > 1000) broken("a message of a strange length: " + said);
  } catch (const std::exception& e) {
    broken(std::string("not a FileError: ") + e.what());
  }
  return said;
}

void write(const std::string& path, const uint8_t* data, size_t size) {
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
}

std::string make_folder() {
  const std::string base = std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path().string();
  const std::string folder = base + "/headstart-fuzz-" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  return folder;
}

}  // namespace

#if defined(HEADSTART_LIBFUZZER)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string path = make_folder() + "/one.gguf";
  write(path, data, size);
  examine(path);
  return 0;
}

#else

namespace {

// Files of one model together, in the order of their names.
std::vector<std::vector<Seed>> read_seeds(std::vector<std::string> paths) {
  std::map<std::string, std::vector<Seed>> models;
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) {
    Seed seed;
    seed.name = std::filesystem::path(path).filename().string();
    std::ifstream file(path, std::ios::binary);
    seed.bytes.assign(std::istreambuf_iterator<char>(file), {});
    Walker{seed};
    const size_t of = seed.name.rfind("-of-");
    models[of == std::string::npos || of < 6 ? seed.name : seed.name.substr(0, of - 6)].push_back(std::move(seed));
  }
  std::vector<std::vector<Seed>> all;
  for (auto& [name, parts] : models) all.push_back(std::move(parts));
  return all;
}

// The kind of a message: without names and numbers. A quote within a word is an apostrophe.
std::string kind_of(const std::string& said) {
  std::string out;
  bool inside = false;
  const size_t path = said.find(".gguf: ");
  for (const char c : said.substr(path == std::string::npos ? 0 : path + 7)) {
    if (c == '\'' && (inside || out.ends_with(" "))) {
      inside = !inside;
      if (!inside) out += "…";
    } else if (!inside && !(c >= '0' && c <= '9')) out += c;
    else if (!inside && !out.ends_with("#")) out += '#';
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: fuzz_gguf ROUNDS SEED FILE…\n");
    return 2;
  }
  const uint64_t rounds = std::strtoull(argv[1], nullptr, 10), number = std::strtoull(argv[2], nullptr, 10);
  const auto seeds = read_seeds({argv + 3, argv + argc});
  const std::string folder = make_folder();
  std::fprintf(stderr, "files in %s\n", folder.c_str());
  for (const auto& parts : seeds) {
    for (const Seed& part : parts) write(folder + "/" + part.name, part.bytes.data(), part.bytes.size());
    const std::string said = examine(folder + "/" + parts[0].name);
    if (!said.empty()) broken("a valid file was refused: " + said);
  }

  std::mt19937_64 random(number);
  Damage damage(random, seeds);
  std::map<std::string, uint64_t> kinds;
  double slowest = 0, seconds = 0;
  for (uint64_t round = 0; round < rounds; round++) {
    const auto& parts = seeds[damage.below(seeds.size())];
    const size_t victim = damage.below(parts.size()), opened = damage.below(50) == 0 ? damage.below(parts.size()) : 0;
    const bool gone = damage.below(200) == 0;
    Bytes bytes = parts[victim].bytes;
    damage.apply(parts[victim], bytes);
    const std::string path = folder + "/" + parts[victim].name;
    if (gone) std::filesystem::remove(path);
    else write(path, bytes.data(), bytes.size());

    alarm(20);  // a hang is a crash
    const auto start = std::chrono::steady_clock::now();
    kinds[kind_of(examine(folder + "/" + parts[opened].name))]++;
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    slowest = std::max(slowest, took);
    seconds += took;
    if (parts.size() > 1) write(path, parts[victim].bytes.data(), parts[victim].bytes.size());
  }
  std::filesystem::remove_all(folder);

  std::vector<std::pair<uint64_t, std::string>> table;
  for (const auto& [kind, count] : kinds) table.emplace_back(count, kind.empty() ? "(read whole)" : kind);
  std::sort(table.rbegin(), table.rend());
  for (const auto& [count, kind] : table) std::printf("%8llu  %s\n", static_cast<unsigned long long>(count), kind.c_str());
  std::printf("{\"rounds\": %llu, \"seed\": %llu, \"read_whole\": %llu, \"kinds_of_refusal\": %zu, \"seconds\": %.1f, \"slowest_ms\": %.1f}\n",
              static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(number), static_cast<unsigned long long>(kinds[""]),
              table.size() - 1, seconds, 1000 * slowest);
}

#endif
