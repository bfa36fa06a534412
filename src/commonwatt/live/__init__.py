"""The live control plane: the controller over a real engine, its store, its checks and its logs."""
