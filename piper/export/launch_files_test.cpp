#include <doctest/doctest.h>
#include <piper/export/launch_files.h>

#include <vector>

namespace piper::exporting {

TEST_CASE("a placement as Open MPI's rankfile and Slurm's list of hosts, a line a rank") {
  const std::vector<RankHost> ranks{{"b", 0}, {"a", 1}, {"b", 1}};
  CHECK(open_mpi_rankfile(ranks) ==
        "# written by piper\nrank 0=b slot=0\nrank 1=a slot=1\nrank 2=b slot=1\n");
  CHECK(open_mpi_rankfile(ranks, 2) ==
        "# written by piper\nrank 0=b slot=0-1\nrank 1=a slot=2-3\nrank 2=b slot=2-3\n");
  CHECK(open_mpi_rankfile(ranks, 4) ==
        "# written by piper\nrank 0=b slot=0-3\nrank 1=a slot=4-7\nrank 2=b slot=4-7\n");
  CHECK(slurm_hostfile(ranks) == "# written by piper\nb\na\nb\n");
}

}  // namespace piper::exporting
