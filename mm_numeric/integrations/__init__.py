"""Use an objective (CE plus numeric losses) in axolotl, LLaMA-Factory and ms-swift."""
