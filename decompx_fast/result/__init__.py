"""What is answered: explanations, and all the ways to look at them, keep them and read them again.

Knows neither engines nor models nor requests.
"""
