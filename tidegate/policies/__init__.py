"""The published rules, each as its source states it. The engine finds them by entry point, like a third party's."""
