// A machine, a model and a trainer to search over every axis, and a request that refers to them.
// For tests.
#pragma once

#include <piper/model/import.h>
#include <piper/plan/search.h>

#include <cstdint>
#include <string>

namespace piper::plan {

struct ExampleWorld {
  explicit ExampleWorld(const std::string& name = "mixtral-8x7b")
      : model(model::load_model(name)) {}
  model::Model model;
  cluster::Cluster cluster = cluster::load_cluster("dgx-h100");
  cost::TrainerProfile trainer = cost::load_trainer("piper");
  // Valid as long as this.
  Request request(int64_t devices, int64_t batch) const {
    return {.model = &model,
            .cluster = &cluster,
            .trainer = &trainer,
            .num_devices = devices,
            .sequence = 4096,
            .global_batch_sequences = batch,
            .memory_limit_bytes = 0.9 * static_cast<double>(cluster.memory_bytes)};
  }
};

}  // namespace piper::plan
