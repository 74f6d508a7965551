import unittest

from calc import add


class Sums(unittest.TestCase):
    def test_two_and_three(self):
        self.assertEqual(add(2, 3), 5)
