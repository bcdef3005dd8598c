//! Nothing: this package exists for its test targets (`tidy` keeps the layers and sizes; `e2e` is in Python beside it).
