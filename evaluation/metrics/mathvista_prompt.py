"""The prompt with which MathVista's script asks GPT-4 to extract an answer from a response.

Source: https://github.com/lupantech/MathVista, evaluation/prompts/ext_ans.py and the function
``create_test_prompt`` of evaluation/extract_answer.py. The prompt is quoted character by character,
because judges answer differently to other prompts.
"""

EXAMPLES = """
Please read the following example. Then extract the answer from the model response and type it at \
the end of the prompt.

Hint: Please answer the question requiring an integer answer and provide the final value, e.g., \
1, 2, 3, at the end.
Question: Which number is missing?

Model response: The number missing in the sequence is 14.

Extracted answer: 14

Hint: Please answer the question requiring a floating-point number with one decimal place and \
provide the final value, e.g., 1.2, 1.3, 1.4, at the end.
Question: What is the fraction of females facing the camera?

Model response: The fraction of females facing the camera is 0.6, which means that six out of ten \
females in the group are facing the camera.

Extracted answer: 0.6

Hint: Please answer the question requiring a floating-point number with two decimal places and \
provide the final value, e.g., 1.23, 1.34, 1.45, at the end.
Question: How much money does Luca need to buy a sour apple candy and a butterscotch candy? \
(Unit: $)

Model response: Luca needs $1.45 to buy a sour apple candy and a butterscotch candy.

Extracted answer: 1.45

Hint: Please answer the question requiring a Python list as an answer and provide the final list, \
e.g., [1, 2, 3], [1.2, 1.3, 1.4], at the end.
Question: Between which two years does the line  graph saw its maximum peak?

Model response: The line graph saw its maximum peak between 2007 and 2008.

Extracted answer: [2007, 2008]

Hint: Please answer the question and provide the correct option letter, e.g., A, B, C, D, at the \
end.
Question: What fraction of the shape is blue?
Choices:
(A) 3/11
(B) 8/11
(C) 6/11
(D) 3/5

Model response: The correct answer is (B) 8/11.

Extracted answer: B
""".strip()
"""Five examples of a question, a response and its extracted answer."""


def judge_prompt(question: str, response: str) -> str:
    """Return the prompt that asks a judge for the answer in a response.

    ``question`` is the prompt that the model answered: MathVista's hint, question and choices.
    """
    return f"{EXAMPLES}\n\n{question}\n\n{response}\n\nExtracted answer: "
