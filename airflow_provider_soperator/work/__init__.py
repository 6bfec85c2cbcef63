"""The work of tasks and the watches of sensors: values that travel to the triggerer, with their steps and looks."""
