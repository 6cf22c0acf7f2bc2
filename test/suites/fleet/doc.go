// Package fleet tests several replicas of "millwright fleet" in processes of their own.
package fleet
