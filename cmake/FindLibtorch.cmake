# Finds libtorch inside an installed torch wheel and makes Libtorch::torch. The wheel's own TorchConfig is not used: a
# CUDA wheel's insists on a CUDA compiler, which a user who only pip-installed does not have.
#   PIPER_TORCH_DIR (variable or environment): the wheel's torch folder; default: the tree's .venv.
if(NOT PIPER_TORCH_DIR AND DEFINED ENV{PIPER_TORCH_DIR})
  set(PIPER_TORCH_DIR $ENV{PIPER_TORCH_DIR})
endif()
if(NOT PIPER_TORCH_DIR)
  file(GLOB candidates ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  if(candidates)
    list(GET candidates 0 PIPER_TORCH_DIR)
  endif()
endif()
set(PIPER_TORCH_DIR "${PIPER_TORCH_DIR}" CACHE PATH "The torch folder of an installed wheel")

include(FindPackageHandleStandardArgs)
find_library(LIBTORCH_CPU torch_cpu PATHS ${PIPER_TORCH_DIR}/lib NO_DEFAULT_PATH)
find_library(LIBTORCH_C10 c10 PATHS ${PIPER_TORCH_DIR}/lib NO_DEFAULT_PATH)
find_library(LIBTORCH_ALL torch PATHS ${PIPER_TORCH_DIR}/lib NO_DEFAULT_PATH)
find_package_handle_standard_args(Libtorch
  REQUIRED_VARS LIBTORCH_ALL LIBTORCH_CPU LIBTORCH_C10
  REASON_FAILURE_MESSAGE "run scripts/setup, or name an installed torch with PIPER_TORCH_DIR=.../site-packages/torch")

if(Libtorch_FOUND AND NOT TARGET Libtorch::torch)
  add_library(Libtorch::torch INTERFACE IMPORTED)
  set(libraries ${LIBTORCH_ALL} ${LIBTORCH_CPU} ${LIBTORCH_C10})
  foreach(extra torch_cuda c10_cuda)
    if(EXISTS ${PIPER_TORCH_DIR}/lib/lib${extra}.so)
      list(APPEND libraries ${PIPER_TORCH_DIR}/lib/lib${extra}.so)
    endif()
  endforeach()
  # The wheel carries fmt's headers, of another version than the system's library: the system's go first. (Theirs would do without a
  # library, but then every file compiles all of it: three seconds.)
  get_target_property(of_fmt fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
  find_path(FMT_INCLUDE_DIRECTORY fmt/format.h HINTS ${of_fmt} REQUIRED)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/fmt_alone)
  file(CREATE_LINK ${FMT_INCLUDE_DIRECTORY}/fmt ${CMAKE_BINARY_DIR}/fmt_alone/fmt SYMBOLIC)
  set_target_properties(Libtorch::torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES
      "${CMAKE_BINARY_DIR}/fmt_alone;${PIPER_TORCH_DIR}/include;${PIPER_TORCH_DIR}/include/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS AT_PER_OPERATOR_HEADERS  # headers of ATen do not bring all of its operators
    INTERFACE_LINK_OPTIONS "-Wl,--no-as-needed;-Wl,-rpath,${PIPER_TORCH_DIR}/lib"
    INTERFACE_LINK_LIBRARIES "${libraries}")
endif()
