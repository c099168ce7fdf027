"""Who answers: exact tables (`table`) and models run by transformers (`transformers`). Import the file you need."""
