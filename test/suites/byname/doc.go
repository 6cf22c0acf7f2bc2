// Package byname tests which Machines are deleted when an autoscaler names some of a deployment:
// the controllers of deployments and of sets together, on caches that lag behind.
package byname
