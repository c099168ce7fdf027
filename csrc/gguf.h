// Reading GGUF files that may be wrong in any way: metadata, tensor directory, mapped tensor data; split files as one.
#pragma once
#include <string>
#include <vector>

#include "weight_file.h"

namespace headstart {

class GgufFile final : public WeightFile {
 public:
  // Opens `path` and, where it is the first of a split model, the files that belong to it. Throws FileError.
  explicit GgufFile(const std::string& path);

 private:
  std::vector<Tensor> open(const std::string& path, const std::string& role, Values& values);
  void add_other_parts();
};

}  // namespace headstart
