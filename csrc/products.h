// Matrices beside a model, on its threads: what draft heads without a layer of their own (Medusa) are made of.
#pragma once
#include <memory>
#include <vector>

#include "model.h"

namespace headstart {

class Products {
 public:
  // `tensors`: matrices of floating point numbers, [outputs, inputs], which may be let go afterwards; those of more bits a weight
  // than `widest` become that. Throws FileError for one that cannot be used.
  Products(const std::vector<Tensor>& tensors, std::shared_ptr<const Model> model, Type widest);
  ~Products();
  size_t size() const { return matrices_.size(); }
  const Matrix& operator[](size_t index) const { return matrices_[index]; }
  // out[r, o] = Σ_i matrix[o, i]·x[r, i] for the first `outputs` outputs. A row does not depend on the others.
  void multiply(size_t index, const float* x, int rows, int outputs, float* out) const;
  size_t weight_bytes() const;

 private:
  struct Working;
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Model::Weights> weights_;
  std::vector<Matrix> matrices_;
  std::unique_ptr<Working> working_;
};

}  // namespace headstart
