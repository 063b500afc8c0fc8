/* Ranks pages whose titles have the words of the query above pages that only mention them. The other numbers are Sphinx' own. */
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([page, title, , , score]) => {
    const stemmer = new Stemmer();
    const stems = (text) =>
      text.toLowerCase().split(/[^a-z0-9]+/).filter((word) => word.length > 1).map((word) => stemmer.stemWord(word));
    const query = new URLSearchParams(window.location.search).get("q") || "";
    const found = new Set(stems(title));
    const isOfProject = /^(CHANGELOG|CONTRIBUTING|SECURITY)/.test(page);
    return score + 5 * stems(query).filter((stem) => found.has(stem)).length - (isOfProject ? 12 : 0);
  },
};
