"""The old place of `chosen`."""

from study.search.settings import chosen as chosen
