"""What was measured along the depth: gradients, paths, Jacobians, the trajectory."""
