// What the files of the Python binding share.
#pragma once
#include <nanobind/nanobind.h>

#include <optional>
#include <optional>
#include <string>
#include <utility>

#include "kernels.h"

namespace headstart {

const Kernels& kernels_for(const std::string& name);                  // throws std::invalid_argument, naming those there are
std::optional<Type> quantized_type(const std::optional<std::string>& name);  // throws std::invalid_argument
std::optional<Type> quantized_type(const std::optional<std::string>& name);  // throws std::invalid_argument
std::pair<float*, nanobind::capsule> new_floats(size_t n);            // not initialised; the capsule owns them
void bind_rows(nanobind::module_& m);
void bind_kernels(nanobind::module_& m);
void bind_file(nanobind::module_& m);

}  // namespace headstart
