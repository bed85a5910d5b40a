# Logits and gradients against transformers, when a Python that has it is at hand (skipped otherwise).
add_executable(hf_parity_probe ${CMAKE_CURRENT_LIST_DIR}/hf_parity_probe.cpp
  ${CMAKE_CURRENT_LIST_DIR}/stand_in/device.cpp ${CMAKE_CURRENT_LIST_DIR}/stand_in/fused_attention.cpp)
target_link_libraries(hf_parity_probe PRIVATE piper_testing_nn piper_model)
piper_share_headers(hf_parity_probe)
set_target_properties(hf_parity_probe PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
if(EXISTS ${CMAKE_SOURCE_DIR}/.venv/bin/python)
  set(PIPER_PYTHON ${CMAKE_SOURCE_DIR}/.venv/bin/python)
else()
  find_program(PIPER_PYTHON python3)
endif()
if(PIPER_PYTHON)
  add_test(NAME hf_parity
    COMMAND ${PIPER_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/hf_parity.py $<TARGET_FILE:hf_parity_probe>)
  set_tests_properties(hf_parity PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600 LABELS isa)
endif()
