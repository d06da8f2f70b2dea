"""TLS that the service manages itself: authority, certificates and their rotation through the Kubernetes API."""
