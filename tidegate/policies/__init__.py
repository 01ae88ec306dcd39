"""Published scaling rules, each as its source states it. Tidegate finds them by entry point, like anyone's."""
