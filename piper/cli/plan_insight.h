// What a plan says of its best strategy beside the ranking: how far each assumption moves it, and
// where its parts stand against the device's roofs. As JSON, for `piper plan` and the page of
// `piper report`.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/plan/exchange_axis.h>
#include <piper/plan/search.h>

namespace piper::cli {

// One exchange of a strategy by every algorithm, for `--explain`; nothing where no rows travel.
void print_exchange(const plan::ExchangeVerdict& verdict);

// {"memory_limit_bytes", "sensitivity": {"change", "inputs": [...]}, "roofline": {..., "points":
// [...]}, "exchange": {...}}
Json insight_json(const plan::Request& request, const plan::Candidate& best);

}  // namespace piper::cli
