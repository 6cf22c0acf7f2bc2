// Package autoscalerpb is the protocol of the cluster-autoscaler for cloud providers in other processes. It is
// generated from externalgrpc.proto, which documents each message and method.
package autoscalerpb
