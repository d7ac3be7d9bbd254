"""Rewards for reinforcement learning (GRPO and others), computed by the tasks' scorers.

    from mm_numeric.rewards import reward

    iou = reward("iou", task="grounding")
    iou.score(text, target, frame)          # a value from 0 to 1, and the reason if parsing failed

    GRPOTrainer(reward_funcs=[iou], ...)    # TRL
    compute_score = iou.compute_score       # verl
    orms["iou"] = iou.orm                   # ms-swift

``mm_numeric.rewards.rules`` lists the rewards.
"""

from mm_numeric.rewards.reward import Reward as Reward
from mm_numeric.rewards.reward import Scored as Scored
from mm_numeric.rewards.reward import reward as reward
from mm_numeric.rewards.reward import reward_columns as reward_columns
