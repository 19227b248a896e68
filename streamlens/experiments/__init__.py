"""EXPERIMENTS: questions that run a model, change it and read the answer. They join hooks/ and readouts/."""
