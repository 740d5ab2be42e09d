/* What scrolls can be reached by the keyboard. */
document$.subscribe(() => setTimeout(() => {
  for (const part of document.querySelectorAll(".md-typeset__scrollwrap, pre > code")) part.tabIndex = 0;
}));
