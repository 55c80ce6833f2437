function slurm_cli_setup_defaults(o, e) return slurm.SUCCESS end
function slurm_cli_pre_submit(o, i)
  if i ~= nil and o["type"] == "srun" and o["mem"] ~= nil and o["mem"] ~= "-2" then
    slurm.log_error("Requesting memory by node is not supported. Use --mem-per-cpu.")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end
function slurm_cli_post_submit(o, j, s) return slurm.SUCCESS end
