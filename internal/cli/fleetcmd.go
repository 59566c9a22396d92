package cli

import "github.com/spf13/cobra"

// fleetCommands are the subcommands of llmops fleet.
var fleetCommands = []func(*env) *cobra.Command{
	newFleetPlanCmd,
	newFleetApplyCmd,
	newFleetGrowCmd,
	newFleetStatusCmd,
	newFleetDrainCmd,
	newFleetUndrainCmd,
	newFleetLintCmd,
}

func newFleetCmd(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:   "fleet",
		Short: "Plan, change and look after the machines",
		Long: `Fleet is about machines: what there is, what a change of the Terraform
configuration means in nodes, GPUs and dollars, and whether it may be made now.

  llmops fleet plan infra/prod && llmops fleet apply infra/prod --fleet prod.yaml

` + exitHelp,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	for _, sub := range fleetCommands {
		c.AddCommand(sub(e))
	}
	return c
}
