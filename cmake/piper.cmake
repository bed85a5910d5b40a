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
target_compile_options(piper_flags INTERFACE -Wall -Wextra $<$<BOOL:${PIPER_WARNINGS_ARE_ERRORS}>:-Werror> -Wno-missing-field-initializers -fno-math-errno)
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

# With CMAKE_UNITY_BUILD (presets `ci` and `quick`) several sources of a target are compiled as one batch, which reads each header and makes
# each template once. Larger batches take less in all, until two cores wait for the last.
set(PIPER_UNITY ${CMAKE_UNITY_BUILD})
set(CMAKE_UNITY_BUILD OFF)
set(PIPER_BATCH_SIZE 20 CACHE STRING "Sources of a batch of a unity build")
mark_as_advanced(PIPER_BATCH_SIZE)

# piper_cold(<target>): -O1 in place of -O2, for what reads, writes and draws once while the search, the simulation or the training takes
# seconds. The compiler then takes a quarter to a third less time for it. No price depends on it: both compute the same doubles.
function(piper_cold target)
  target_compile_options(${target} PRIVATE -O1)
endfunction()

# piper_folder(NAME graph SOURCES graph.cpp ... DEPENDS base ... TESTS graph_test.cpp ... LIBRARIES ...)
# makes piper_graph (alias piper::graph) and, with TESTS, the program piper_graph_test registered with ctest.
# DEPENDS are folders and become part of the interface; LIBRARIES are other targets; APART are tests that take long (piper_test);
# COLD says that nothing in it is hot (piper_cold).
function(piper_folder)
  cmake_parse_arguments(F "COLD;TORCH" "NAME" "SOURCES;DEPENDS;TESTS;APART;LIBRARIES" ${ARGN})
  set(target piper_${F_NAME})
  add_library(${target} STATIC ${F_SOURCES})
  add_library(piper::${F_NAME} ALIAS ${target})
  target_link_libraries(${target} PUBLIC piper_flags ${F_LIBRARIES})
  foreach(dependency ${F_DEPENDS})
    target_link_libraries(${target} PUBLIC piper_${dependency})
  endforeach()
  if(F_TORCH)
    target_link_libraries(${target} PUBLIC Libtorch::torch)
  endif()
  if(F_COLD)
    piper_cold(${target})
  endif()
  piper_share_headers(${target})
  if(F_TESTS)
    piper_test(NAME ${F_NAME} SOURCES ${F_TESTS} APART ${F_APART} LIBRARIES ${target})
    piper_share_headers(${target}_test)
  endif()
endfunction()

# What nearly every file includes.
set(PIPER_COMMON_HEADERS <fmt/format.h> <fmt/ranges.h> <algorithm> <filesystem> <functional> <map> <memory> <optional> <set> <string>
  <string_view> <vector>)

# piper_precompiled(<name> LIBRARIES piper_flags ... HEADERS <a.h> ...): the target piper_<name>, which precompiles these headers once.
function(piper_precompiled name)
  cmake_parse_arguments(P "" "" "LIBRARIES;HEADERS" ${ARGN})
  if(NOT TARGET piper_${name})
    file(WRITE ${CMAKE_BINARY_DIR}/${name}.cpp "")
    add_library(piper_${name} STATIC EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/${name}.cpp)
    target_link_libraries(piper_${name} PUBLIC ${P_LIBRARIES})
    target_precompile_headers(piper_${name} PRIVATE ${P_HEADERS})
  endif()
endfunction()

# Which of the two dear libraries (torch, json) a file includes, by itself or by way of others of the house.
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
      elseif(included STREQUAL nlohmann/json.hpp)
        list(APPEND dear json)
      elseif(included MATCHES "^(piper|bench|studies|testing)/" AND EXISTS ${CMAKE_SOURCE_DIR}/${included})
        piper_dear_includes(${included} more)
        list(APPEND dear ${more})
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY piper_dear_includes_${header} "${dear}")
  endif()
  get_property(dear GLOBAL PROPERTY piper_dear_includes_${header})
  set(${result} "${dear}" PARENT_SCOPE)
endfunction()

# The precompiled header of the kind that a file's dear includes ask for: of torch, of the JSON library, of both or of neither.
function(piper_kind_of_headers dear result)
  if(torch IN_LIST dear)
    set(name torch_headers)
    set(also)
    if(json IN_LIST dear)
      set(name torch_json_headers)
      set(also <nlohmann/json.hpp>)
    endif()
    if(PIPER_TRAIN)
      piper_precompiled(${name} LIBRARIES piper_flags Libtorch::torch HEADERS <piper/nn/aten.h> ${also} ${PIPER_COMMON_HEADERS})
    endif()
  elseif(json IN_LIST dear)
    set(name json_headers)
    piper_precompiled(${name} LIBRARIES piper_flags HEADERS <nlohmann/json.hpp> ${PIPER_COMMON_HEADERS})
  else()
    set(name plain_headers)
    piper_precompiled(${name} LIBRARIES piper_flags HEADERS ${PIPER_COMMON_HEADERS})
  endif()
  set(${result} ${name} PARENT_SCOPE)
endfunction()

# Precompiled headers for the sources of <target>, each what it includes and no more: what a precompiled header leaves to be instantiated,
# the compiler instantiates in every file. That takes 2 s of processor time for torch and 1.5 s for the JSON library, and most files need
# neither. (CMake knows one precompiled header a target: what it would say to the compiler is said here by file.) A source with SKIP_PRECOMPILE_HEADERS is left alone.
function(piper_share_headers target)
  set(how piper_share_headers_now)
  if(PIPER_UNITY)
    set(how piper_unite_now)
  elseif(CMAKE_DISABLE_PRECOMPILE_HEADERS)
    return()
  endif()
  # When the folder has said all about its sources. (EVAL, because a deferred call reads its variables when it is made.)
  cmake_language(EVAL CODE "cmake_language(DEFER CALL ${how} ${target})")
endfunction()
function(piper_share_headers_now target)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    get_source_file_property(skips ${source} SKIP_PRECOMPILE_HEADERS)
    get_source_file_property(has_them ${source} PIPER_HAS_HEADERS)  # of several programs of a folder
    file(REAL_PATH ${source} path)
    file(RELATIVE_PATH file ${CMAKE_SOURCE_DIR} ${path})
    if(skips OR has_them OR NOT EXISTS ${path} OR file MATCHES "^(build|\\.\\.)")
      continue()
    endif()
    piper_dear_includes(${file} dear)
    piper_kind_of_headers("${dear}" name)
    get_target_property(folder piper_${name} BINARY_DIR)
    set(header ${folder}/CMakeFiles/piper_${name}.dir/cmake_pch.hxx)
    set(compiled ${header}.gch)
    if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
      set(compiled ${header}.pch)
    endif()
    set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -Winvalid-pch -include ${header})
    set_property(SOURCE ${source} APPEND PROPERTY OBJECT_DEPENDS ${compiled})
    set_property(SOURCE ${source} PROPERTY PIPER_HAS_HEADERS ON)
  endforeach()
endfunction()

# Batches for the sources of <target>, but for those that are compiled in a way of their own: CMake itself leaves out those that have options
# or definitions. All share the precompiled header of the dearest kind that one of them needs.
function(piper_unite_now target)
  get_target_property(sources ${target} SOURCES)
  set(dear)
  foreach(source ${sources})
    file(REAL_PATH ${source} path)
    file(RELATIVE_PATH file ${CMAKE_SOURCE_DIR} ${path})
    get_source_file_property(skips ${source} SKIP_PRECOMPILE_HEADERS)
    if(skips)
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    elseif(path MATCHES "\\.cpp$" AND NOT file MATCHES "^(build|\\.\\.)")
      piper_dear_includes(${file} of_source)
      list(APPEND dear ${of_source})
    endif()
  endforeach()
  piper_kind_of_headers("${dear}" name)
  target_precompile_headers(${target} REUSE_FROM piper_${name})
  set(size ${PIPER_BATCH_SIZE})
  if(target MATCHES "_test$" AND size GREATER 8)  # tests are long
    set(size 8)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${size})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # Sources are included, and gcc takes what is included for a header, in which a class of an anonymous namespace would be a fault.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# Every header of these folders compiles alone: the target piper_headers, which scripts/test asks for and nobody else. One generated source
# shows it for a chain of headers (header_chains.py). Each is given the precompiled header of its kind, which makes it three times as fast:
# what this hides, a forgotten header of the standard library or of fmt, tests/check_includes.py finds for the names that it lists.
function(piper_check_headers)
  set(libraries)
  foreach(folder ${ARGN})
    if(TARGET piper_${folder})
      list(APPEND folders ${folder})
      list(APPEND libraries piper_${folder})
    endif()
  endforeach()
  find_package(Python3 COMPONENTS Interpreter)
  if(NOT Python3_FOUND)
    return()
  endif()
  # (The only glob of the build: a forgotten header is what the check is for.)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/piper/*.h ${CMAKE_SOURCE_DIR}/bench/*.h ${CMAKE_SOURCE_DIR}/studies/*.h ${CMAKE_SOURCE_DIR}/testing/*.h)
  set(OUT ${CMAKE_BINARY_DIR}/header_check)
  execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/cmake/header_chains.py ${CMAKE_SOURCE_DIR} ${OUT} ${folders} cli
    OUTPUT_VARIABLE lines OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" lines "${lines}")
  foreach(line ${lines})
    string(REPLACE " " ";" line "${line}")
    list(POP_FRONT line kind)
    list(APPEND sources_${kind} ${line})
  endforeach()
  add_custom_target(piper_headers)
  foreach(kind plain_headers json_headers torch_headers torch_json_headers)
    if(NOT sources_${kind} OR (kind MATCHES "^torch" AND NOT PIPER_TRAIN))  # cli has some of both
      continue()
    endif()
    add_library(piper_check_${kind} OBJECT EXCLUDE_FROM_ALL ${sources_${kind}})
    target_link_libraries(piper_check_${kind} PRIVATE piper_flags ${libraries})
    target_precompile_headers(piper_check_${kind} REUSE_FROM piper_${kind})
    add_dependencies(piper_headers piper_check_${kind})
  endforeach()
endfunction()

# piper_test(NAME graph SOURCES a_test.cpp b_test.cpp ... LIBRARIES piper_graph): the program piper_graph_test, which ctest knows as graph.
# APART b_test.cpp ...: what is in these takes long; ctest runs it beside the rest, as graph_b.
function(piper_test)
  cmake_parse_arguments(T "" "NAME" "SOURCES;LIBRARIES;APART" ${ARGN})
  if(NOT TARGET piper_test_entry)  # compiled once, and nothing in it is hot
    add_library(piper_test_entry OBJECT EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/tests/main_test.cpp)
    target_link_libraries(piper_test_entry PUBLIC piper_flags doctest::doctest)
    target_compile_options(piper_test_entry PRIVATE -O0)
  endif()
  add_executable(piper_${T_NAME}_test ${T_SOURCES})
  target_link_libraries(piper_${T_NAME}_test PRIVATE piper_test_entry ${T_LIBRARIES})
  set_target_properties(piper_${T_NAME}_test PROPERTIES CXX_CLANG_TIDY "")  # the macros of doctest are not ours
  set(rest)
  foreach(source ${T_APART})
    if(NOT source IN_LIST T_SOURCES)
      message(FATAL_ERROR "${source} shall run apart, but is no source of the tests of ${T_NAME}")
    endif()
    string(REPLACE _test.cpp "" name ${source})
    string(REGEX REPLACE "^${T_NAME}_" "" name ${name})
    add_test(NAME ${T_NAME}_${name} COMMAND piper_${T_NAME}_test --source-file=*/${source} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${T_NAME}_${name} PROPERTIES COST 45)  # starts early
    list(APPEND rest */${source})
  endforeach()
  if(rest)
    list(JOIN rest "," rest)
    set(rest --source-file-exclude=${rest})
  endif()
  add_test(NAME ${T_NAME} COMMAND piper_${T_NAME}_test ${rest} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
endfunction()

# piper_absent_test(NAME x REASON ...): a test whose library was not found when the tree was configured, so that ctest counts it as skipped.
function(piper_absent_test)
  cmake_parse_arguments(T "" "NAME;REASON" "" ${ARGN})
  add_test(NAME ${T_NAME} COMMAND ${CMAKE_COMMAND} -E echo "SKIP: ${T_REASON}")
  set_tests_properties(${T_NAME} PROPERTIES SKIP_REGULAR_EXPRESSION "^SKIP: ")
  message(STATUS "${T_NAME} is left out: ${T_REASON}")
endfunction()
