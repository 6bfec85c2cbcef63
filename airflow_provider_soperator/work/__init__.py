"""The work of tasks and the watches of sensors: values that travel to the triggerer and are carried out there."""
