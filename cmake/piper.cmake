# Settings of the whole tree, and piper_folder(): one folder = one library target = one test program.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})

find_program(CCACHE ccache)
if(CCACHE)
  # The sloppiness lets ccache work beside precompiled headers. Paths relative to the tree let presets with the same flags
  # (planner and release) and clones in other places share what one of them has compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE})
endif()

find_package(nlohmann_json REQUIRED)
find_package(fmt REQUIRED)
find_package(CLI11 REQUIRED)
find_package(doctest REQUIRED)
find_package(Threads REQUIRED)

add_library(piper_flags INTERFACE)
target_include_directories(piper_flags INTERFACE ${CMAKE_SOURCE_DIR})
# gcc 12 sees overflows in vector::push_back that are not there (GCC bug 105329 and its kin): not an error.
target_compile_options(piper_flags INTERFACE -Wall -Wextra -Werror -Wno-missing-field-initializers -fno-math-errno)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND NOT CMAKE_CXX_CLANG_TIDY)  # clang-tidy does not know them
  target_compile_options(piper_flags INTERFACE -Wno-stringop-overflow
    -fvect-cost-model=dynamic)  # loops become vectors at -O2, too
endif()
target_compile_definitions(piper_flags INTERFACE PIPER_VERSION="${PROJECT_VERSION}")
target_link_libraries(piper_flags INTERFACE nlohmann_json::nlohmann_json fmt::fmt Threads::Threads)
if(PIPER_SANITIZE_ADDRESS)
  target_compile_options(piper_flags INTERFACE -fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  target_link_options(piper_flags INTERFACE -fsanitize=address,undefined)
endif()
if(PIPER_SANITIZE_THREAD)
  target_compile_options(piper_flags INTERFACE -fsanitize=thread)
  target_link_options(piper_flags INTERFACE -fsanitize=thread)
endif()

enable_testing()

# piper_folder(NAME graph SOURCES graph.cpp ... DEPENDS base ... TESTS graph_test.cpp ... LIBRARIES ...)
# makes piper_graph (alias piper::graph) and, with TESTS, the program piper_graph_test registered with ctest.
# DEPENDS are folders and become part of the interface; LIBRARIES are other targets.
function(piper_folder)
  cmake_parse_arguments(F "TORCH" "NAME" "SOURCES;DEPENDS;TESTS;LIBRARIES" ${ARGN})
  set(target piper_${F_NAME})
  add_library(${target} STATIC ${F_SOURCES})
  add_library(piper::${F_NAME} ALIAS ${target})
  target_link_libraries(${target} PUBLIC piper_flags ${F_LIBRARIES})
  foreach(dependency ${F_DEPENDS})
    target_link_libraries(${target} PUBLIC piper_${dependency})
  endforeach()
  if(F_TORCH)
    target_link_libraries(${target} PUBLIC Libtorch::torch)
    piper_use_torch_headers(${target})
  else()
    piper_use_plain_headers(${target})
  endif()
  if(F_TESTS)
    piper_test(NAME ${F_NAME} SOURCES ${F_TESTS} LIBRARIES ${target})
    if(F_TORCH)
      piper_use_torch_headers(${target}_test)
    else()
      piper_use_plain_headers(${target}_test)
    endif()
  endif()
  piper_check_headers(${F_NAME} ${target})
endfunction()

# What most files include: the JSON library alone costs a second a file.
set(PIPER_COMMON_HEADERS <nlohmann/json.hpp> <fmt/format.h> <fmt/ranges.h> <algorithm> <filesystem> <functional> <map> <memory> <optional>
  <set> <string> <string_view> <vector>)

# piper_use_precompiled(<target> <name> LIBRARIES piper_flags ... HEADERS <a.h> ...): <target> is given these headers, precompiled
# once under that name for all targets that ask.
function(piper_use_precompiled target name)
  cmake_parse_arguments(P "" "" "LIBRARIES;HEADERS" ${ARGN})
  if(NOT TARGET piper_${name})
    file(WRITE ${CMAKE_BINARY_DIR}/${name}.cpp "")
    add_library(piper_${name} STATIC EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/${name}.cpp)
    target_link_libraries(piper_${name} PUBLIC ${P_LIBRARIES})
    target_precompile_headers(piper_${name} PRIVATE ${P_HEADERS})
  endif()
  target_precompile_headers(${target} REUSE_FROM piper_${name})
endfunction()

# Targets left of the torch line share one precompiled header.
function(piper_use_plain_headers target)
  piper_use_precompiled(${target} plain_headers LIBRARIES piper_flags HEADERS ${PIPER_COMMON_HEADERS})
endfunction()

# Including all of ATen costs a quarter of a minute a file: targets right of the torch line share one with it.
function(piper_use_torch_headers target)
  piper_use_precompiled(${target} torch_headers LIBRARIES piper_flags Libtorch::torch HEADERS <ATen/ATen.h> ${PIPER_COMMON_HEADERS})
endfunction()

# Which of the three dear libraries (torch, cli, json) a header includes, by itself or by way of others of the house.
function(piper_dear_includes header result)
  get_property(known GLOBAL PROPERTY piper_dear_includes_${header} SET)
  if(NOT known)
    set_property(GLOBAL PROPERTY piper_dear_includes_${header} "")  # ends a circle of includes
    set(dear)
    file(STRINGS ${CMAKE_SOURCE_DIR}/${header} lines REGEX "^#include <")
    foreach(line ${lines})
      string(REGEX REPLACE "^#include <([^>]*)>.*" "\\1" included "${line}")
      if(included MATCHES "^(ATen|c10|torch)/")
        list(APPEND dear torch)
      elseif(included MATCHES "^CLI/")
        list(APPEND dear cli)
      elseif(included MATCHES "^nlohmann/")
        list(APPEND dear json)
      elseif(included MATCHES "^piper/" AND EXISTS ${CMAKE_SOURCE_DIR}/${included})
        piper_dear_includes(${included} more)
        list(APPEND dear ${more})
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY piper_dear_includes_${header} "${dear}")
  endif()
  get_property(dear GLOBAL PROPERTY piper_dear_includes_${header})
  set(${result} "${dear}" PARENT_SCOPE)
endfunction()

# Every header of a folder compiles alone (ARGN: the libraries it needs): one generated file a header, built by the target piper_headers, which
# scripts/test asks for and nobody else. (The only glob of the build: a forgotten header is what the check is for.)
# A header that includes a dear library is given it precompiled, and only then: given more than it includes, it would prove nothing.
# (torch's comes with the JSON library.)
function(piper_check_headers folder)
  file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/*.h)
  foreach(header ${headers})
    string(MAKE_C_IDENTIFIER ${header} id)
    set(source ${CMAKE_BINARY_DIR}/header_check/${id}.cpp)
    if(NOT EXISTS ${source})
      file(WRITE ${source} "#include <${header}>\n#include <${header}>\n")
    endif()
    piper_dear_includes(${header} dear)
    set(kind cheap)
    foreach(library json cli torch)
      if(library IN_LIST dear)
        set(kind ${library})
      endif()
    endforeach()
    list(APPEND sources_${kind} ${source})
  endforeach()
  if(NOT TARGET piper_headers)
    add_custom_target(piper_headers)
  endif()
  foreach(kind cheap json cli torch)
    if(NOT sources_${kind} OR (kind STREQUAL torch AND NOT PIPER_TRAIN))
      continue()
    endif()
    set(target piper_${folder}_headers_${kind})
    add_library(${target} OBJECT EXCLUDE_FROM_ALL ${sources_${kind}})
    target_link_libraries(${target} PRIVATE ${ARGN})
    if(kind STREQUAL torch)
      piper_use_torch_headers(${target})
    elseif(kind STREQUAL cli)
      piper_use_precompiled(${target} cli_header LIBRARIES piper_flags CLI11::CLI11 HEADERS <CLI/CLI.hpp>)
      target_compile_options(${target} PRIVATE -O0)  # the library is mostly code
      target_compile_options(piper_cli_header PRIVATE -O0)
    elseif(kind STREQUAL json)
      piper_use_precompiled(${target} json_header LIBRARIES piper_flags HEADERS <nlohmann/json.hpp>)
    endif()
    add_dependencies(piper_headers ${target})
  endforeach()
endfunction()

# piper_test(NAME graph SOURCES a_test.cpp ... LIBRARIES piper_graph): the program piper_graph_test.
function(piper_test)
  cmake_parse_arguments(T "" "NAME" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(piper_${T_NAME}_test ${T_SOURCES} ${CMAKE_SOURCE_DIR}/tests/main_test.cpp)
  target_link_libraries(piper_${T_NAME}_test PRIVATE ${T_LIBRARIES} doctest::doctest)
  set_target_properties(piper_${T_NAME}_test PROPERTIES CXX_CLANG_TIDY "")  # the macros of doctest are not ours
  add_test(NAME ${T_NAME} COMMAND piper_${T_NAME}_test WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
endfunction()
