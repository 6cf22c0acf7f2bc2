package sim_test

import (
	"testing"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/contract"
)

func TestContract(t *testing.T) {
	contract.Check(t, func(*testing.T) driver.Driver { return sim.New(sim.Config{}) })
}
