"""The built-in placement controllers, each a worker of its own. They use what other controllers may use, and nothing else."""
