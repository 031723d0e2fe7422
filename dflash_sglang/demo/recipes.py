"""The functions that the code samples know, as text with holes.

A header line gives name, what the function is over, and the constants it may have; the next line
is its task, the lines below are its body. Holes: {x} the argument, {e} its element, {n} a constant.
"""

from __future__ import annotations

from typing import NamedTuple


class Recipe(NamedTuple):
    """A function with holes."""

    name: str
    task: str  # completes "Write a Python function that ..."
    body: str  # lines below the docstring, indented by four spaces each level
    over: str  # "numbers", "text", "words", "number" or "pair"
    constants: tuple[int, ...]


_TEXT = """\
## sum_list | numbers |
returns the sum of a list
total = 0
for {e} in {x}:
    total += {e}
return total

## product_list | numbers |
returns the product of a list
result = 1
for {e} in {x}:
    result *= {e}
return result

## average_list | numbers |
returns the average of a list
if not {x}:
    return 0
return sum({x}) / len({x})

## largest | numbers |
returns the largest element of a list
best = {x}[0]
for {e} in {x}:
    if {e} > best:
        best = {e}
return best

## smallest | numbers |
returns the smallest element of a list
best = {x}[0]
for {e} in {x}:
    if {e} < best:
        best = {e}
return best

## reverse_list | numbers |
returns a list in reverse order
result = []
for {e} in {x}:
    result.insert(0, {e})
return result

## unique | numbers |
removes duplicates from a list
seen = []
for {e} in {x}:
    if {e} not in seen:
        seen.append({e})
return seen

## squares | numbers |
returns the squares of a list
return [{e} * {e} for {e} in {x}]

## even_only | numbers |
returns the even elements of a list
return [{e} for {e} in {x} if {e} % 2 == 0]

## odd_only | numbers |
returns the odd elements of a list
return [{e} for {e} in {x} if {e} % 2 == 1]

## is_sorted | numbers |
checks whether a list is sorted
for i in range(1, len({x})):
    if {x}[i - 1] > {x}[i]:
        return False
return True

## bubble_sort | numbers |
sorts a list with bubble sort
result = list({x})
for i in range(len(result)):
    for j in range(len(result) - 1 - i):
        if result[j] > result[j + 1]:
            result[j], result[j + 1] = result[j + 1], result[j]
return result

## running_total | numbers |
returns the running totals of a list
total = 0
result = []
for {e} in {x}:
    total += {e}
    result.append(total)
return result

## count_above_{n} | numbers | 5 10 15 20 25
counts the elements of a list above {n}
count = 0
for {e} in {x}:
    if {e} > {n}:
        count += 1
return count

## keep_below_{n} | numbers | 5 10 15 20 25
keeps the elements of a list below {n}
result = []
for {e} in {x}:
    if {e} < {n}:
        result.append({e})
return result

## multiply_by_{n} | numbers | 2 3 4 5 6 7 8 10
multiplies each element of a list by {n}
return [{e} * {n} for {e} in {x}]

## add_{n} | numbers | 1 2 3 4 5 6 7 10
adds {n} to each element of a list
return [{e} + {n} for {e} in {x}]

## divisible_by_{n} | numbers | 2 3 4 5 6 7
returns the elements of a list that are divisible by {n}
result = []
for {e} in {x}:
    if {e} % {n} == 0:
        result.append({e})
return result

## first_{n} | numbers | 2 3 4
returns the first {n} elements of a list
return {x}[:{n}]

## last_{n} | numbers | 2 3 4
returns the last {n} elements of a list
return {x}[-{n}:]

## reverse_text | text |
reverses a string
result = ''
for {e} in {x}:
    result = {e} + result
return result

## is_palindrome | text |
checks whether a string is a palindrome
{x} = {x}.lower()
return {x} == {x}[::-1]

## count_vowels | text |
counts the vowels in a string
count = 0
for {e} in {x}.lower():
    if {e} in 'aeiou':
        count += 1
return count

## remove_vowels | text |
removes the vowels from a string
result = ''
for {e} in {x}:
    if {e} not in 'aeiou':
        result += {e}
return result

## char_counts | text |
counts each character of a string
counts = {{}}
for {e} in {x}:
    counts[{e}] = counts.get({e}, 0) + 1
return counts

## repeat_{n}_times | text | 2 3 4 5
repeats a string {n} times
return {x} * {n}

## capitalize_first | text |
makes the first character of a string upper case
if not {x}:
    return {x}
return {x}[0].upper() + {x}[1:]

## longest_word | words |
returns the longest string of a list of words
best = ''
for {e} in {x}:
    if len({e}) > len(best):
        best = {e}
return best

## word_lengths | words |
returns the length of each word in a list
return [len({e}) for {e} in {x}]

## join_words | words |
joins a list of words with spaces
result = ''
for {e} in {x}:
    if result:
        result += ' '
    result += {e}
return result

## upper_words | words |
converts a list of words to upper case
return [{e}.upper() for {e} in {x}]

## longer_than_{n} | words | 3 4 5 6
returns the words of a list that are longer than {n} characters
return [{e} for {e} in {x} if len({e}) > {n}]

## factorial | number |
computes the factorial of a number
result = 1
for i in range(2, {x} + 1):
    result *= i
return result

## fibonacci | number |
returns the first Fibonacci numbers
result = []
a, b = 0, 1
for _ in range({x}):
    result.append(a)
    a, b = b, a + b
return result

## is_prime | number |
checks whether a number is prime
if {x} < 2:
    return False
for i in range(2, int({x} ** 0.5) + 1):
    if {x} % i == 0:
        return False
return True

## is_even | number |
checks whether a number is even
return {x} % 2 == 0

## digit_sum | number |
returns the sum of the digits of a number
total = 0
while {x} > 0:
    total += {x} % 10
    {x} //= 10
return total

## divisors | number |
returns all divisors of a number
result = []
for i in range(1, {x} + 1):
    if {x} % i == 0:
        result.append(i)
return result

## countdown | number |
returns a countdown from a number to one
result = []
while {x} > 0:
    result.append({x})
    {x} -= 1
return result

## sum_up_to | number |
returns the sum of all numbers up to a given number
total = 0
for i in range(1, {x} + 1):
    total += i
return total

## power_of_{n} | number | 2 3 5 10
raises {n} to the power of a number
result = 1
for _ in range({x}):
    result *= {n}
return result

## gcd | pair |
computes the greatest common divisor of two numbers
while b:
    a, b = b, a % b
return a

## maximum | pair |
returns the larger of two numbers
if a > b:
    return a
return b

## difference | pair |
returns the absolute difference of two numbers
if a > b:
    return a - b
return b - a

## add | pair |
adds two numbers
return a + b

## multiply | pair |
multiplies two numbers
result = 0
for _ in range(b):
    result += a
return result

"""


def _parsed(text: str) -> Recipe:
    header, task, body = text.split("\n", 2)
    name, over, constants = (part.strip() for part in header.split("|"))
    return Recipe(name, task, body.rstrip("\n"), over, tuple(map(int, constants.split())))


RECIPES = tuple(_parsed(text) for text in _TEXT.split("## ")[1:])
