// Package autoscalerpb is the protocol of the cluster-autoscaler for cloud providers in other processes. It is
// generated from externalgrpc.proto, which documents all messages and methods.
package autoscalerpb
