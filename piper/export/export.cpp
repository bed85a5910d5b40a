#include <piper/export/export.h>
#include <piper/export/offers.h>

namespace piper::exporting {

Exported export_strategy(Trainer trainer, const model::Model& model,
                         const strategy::Strategy& strategy) {
  const TrainerTraits& t = traits(trainer);
  Exported exported = t.write(model, strategy);
  const std::vector<std::string> lacking =
      not_offered(t.software, cost::load_trainer(t.profile).offers, strategy);
  exported.cannot.insert(exported.cannot.end(), lacking.begin(), lacking.end());
  if (!exported.cannot.empty()) exported.text.clear();
  return exported;
}

}  // namespace piper::exporting
