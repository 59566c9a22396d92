package recorded

import (
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// command is what the client runs and with which environment: what the job says, with
// Nomad's own variables in place.
func (a *alloc) command(t *api.Task) (argv, env []string) {
	known := map[string]string{"NOMAD_ALLOC_ID": a.ID, "NOMAD_JOB_ID": a.JobID, "NOMAD_GROUP_NAME": a.TaskGroup, "NOMAD_TASK_NAME": t.Name, "NOMAD_TASK_DIR": "/tmp"}
	for _, p := range a.AllocatedResources.Shared.Ports {
		known["NOMAD_ADDR_"+p.Label] = fmt.Sprintf("%s:%d", p.HostIP, p.Value)
		known["NOMAD_IP_"+p.Label], known["NOMAD_PORT_"+p.Label] = p.HostIP, fmt.Sprint(p.Value)
	}
	var pairs []string
	for k, v := range known {
		pairs = append(pairs, "${"+k+"}", v)
		env = append(env, k+"="+v)
	}
	put := strings.NewReplacer(pairs...)
	command, _ := t.Config["command"].(string)
	argv = append(argv, put.Replace(command))
	args, _ := t.Config["args"].([]any)
	for _, arg := range args {
		argv = append(argv, put.Replace(fmt.Sprint(arg)))
	}
	for k, v := range t.Env {
		env = append(env, k+"="+put.Replace(v))
	}
	return argv, env
}
