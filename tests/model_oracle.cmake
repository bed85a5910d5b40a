# Parameter counts against transformers, architecture by architecture.
piper_python_test(NAME model_oracle SCRIPT oracle_parameters.py)
set_tests_properties(model_oracle PROPERTIES TIMEOUT 600)
