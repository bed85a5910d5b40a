// Which model a state belongs to: a hash of everything that the forward and the loss read of the
// model. It leaves out names and what only a new run reads (the initialiser's range).
#pragma once

#include <piper/model/model.h>

#include <string>

namespace piper::checkpoint {

// "2-" and the SHA-256 of the fields. A field that is added to a record of model.h does not compile
// before model_fingerprint.cpp says whether it is hashed.
std::string model_fingerprint(const model::Model& model);

// Whether a checkpoint's fingerprint is that of the model. One that an earlier Piper wrote has no
// "2-" and leaves fields out: the numbers of the rotary scaling, which pairs turn, the coefficients
// of the routers' losses, and fields of shapes, which the tensors tell.
bool has_fingerprint(const model::Model& model, const std::string& fingerprint);

// What an earlier Piper's fingerprint leaves open of this model: "" = the current one leaves
// nothing open; else a line to be said. Throws InvalidInput where it is the rotation itself: the
// model has a scaling, whose numbers nothing in the checkpoint tells. `source` names the
// checkpoint.
std::string left_open(const model::Model& model, const std::string& fingerprint,
                      const std::string& source);

}  // namespace piper::checkpoint
